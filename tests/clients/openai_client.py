#!/usr/bin/env python3
"""The official openai package against `gateway serve` before two simulated vLLM replicas.

Usage: openai_client.py GATEWAY_BINARY
"""

import asyncio
import hashlib
import json
import sys
import time

import openai

from support import FOLDER, Children, Results, free_ports, get, tail, total, wait_for

KEY = "sk-" + "client-check-" * 3
MODEL = "sim"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
MESSAGES = [
    {"role": "system", "content": "You answer questions about the weather. " * 60},
    {"role": "user", "content": "What is the weather in Berlin?"},
]


def start(binary, children):
    """Two replicas and a gateway with a key. Gives the data and the admin URL, and all three processes."""
    first, second, data, admin = free_ports(4)
    engines = [
        children.start(f"engine-{port}", [binary, "engine", "--port", port, "--model", MODEL, "--decode-ms", 2])
        for port in (first, second)
    ]
    config = FOLDER / "gateway.yaml"
    config.write_text(
        f"server: {{ listen: '127.0.0.1:{data}', admin_listen: '127.0.0.1:{admin}', expose_routing: true }}\n"
        f"models:\n"
        f"  - name: {MODEL}\n"
        f"    replicas: [{{ url: 'http://127.0.0.1:{first}' }}, {{ url: 'http://127.0.0.1:{second}' }}]\n"
        f"keys: [{{ id: check, sha256: {hashlib.sha256(KEY.encode()).hexdigest()} }}]\n"
    )
    gateway = children.start("gateway", [binary, "serve", "--config", config])
    wait_for(f"http://127.0.0.1:{admin}/readyz", gateway, 20)
    end = time.monotonic() + 20
    while total(get(f"http://127.0.0.1:{admin}/metrics"), "gateway_replica_up") < 2:
        if time.monotonic() > end:
            sys.exit("the replicas are not up:\n" + "\n".join(tail(child) for child in engines))
        time.sleep(0.1)
    return f"http://127.0.0.1:{data}/v1", f"http://127.0.0.1:{admin}", [*engines, gateway]


def chat(client, results):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16)
    choice, usage = answer.choices[0], answer.usage
    results.check("chat: content", bool(choice.message.content), choice)
    results.check("chat: finish reason", choice.finish_reason in ("stop", "length"), choice)
    results.check("chat: usage adds up", usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    results.check("chat: the limit holds", 1 <= usage.completion_tokens <= 16, usage)


def stream(client, results):
    chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    results.check("stream: content", bool(text), chunks)
    results.check("stream: ends with a finish reason", chunks[-1].choices[0].finish_reason is not None, chunks[-1])
    results.check("stream: no usage unless asked for", all(chunk.usage is None for chunk in chunks), chunks)

    asked = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, stream=True, stream_options=asked)
    )
    last = chunks[-1]
    results.check("stream: usage when asked for", last.choices == [] and last.usage.completion_tokens >= 1, last)
    cached = last.usage.prompt_tokens_details.cached_tokens
    results.check("stream: the third time the prompt is cached", cached > 100, last.usage)


def tools(client, results):
    ask = {"model": MODEL, "messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    answer = client.chat.completions.create(**ask).choices[0]
    call = (answer.message.tool_calls or [None])[0]
    results.check("tools: the call", call is not None and call.function.name == "get_weather", answer)
    results.check("tools: the arguments are JSON", isinstance(json.loads(call.function.arguments), (dict, list)), call)

    name, arguments = "", ""
    for chunk in client.chat.completions.create(**ask, stream=True):
        for part in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    results.check("tools: the call in a stream", name == "get_weather", name)
    results.check("tools: its arguments are JSON", isinstance(json.loads(arguments), (dict, list)), arguments)


def completions(client, results):
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8)
    results.check("completions: text", bool(answer.choices[0].text), answer)
    results.check("completions: usage", 1 <= answer.usage.completion_tokens <= 8, answer.usage)
    chunks = list(client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, stream=True))
    results.check("completions: stream", bool("".join(chunk.choices[0].text for chunk in chunks)), chunks)


def responses(client, results):
    answer = client.responses.create(model=MODEL, input="What is the weather in Berlin?", max_output_tokens=16)
    results.check("responses: text", bool(answer.output_text), answer)
    events = list(client.responses.create(model=MODEL, input="Hello", max_output_tokens=16, stream=True))
    kinds = [event.type for event in events]
    results.check("responses: stream", kinds[-1] in ("response.completed", "response.incomplete"), kinds)


def models(client, results):
    names = [model.id for model in client.models.list()]
    results.check("models: the list", names == [MODEL], names)


def errors(client, base_url, results):
    def raised(name, kind, call, code=None):
        try:
            call()
        except openai.APIError as error:
            good = type(error) is kind and (code is None or error.code == code)
            results.check(f"errors: {name}", good, (type(error), error.code, error.body))
        else:
            results.check(f"errors: {name}", False, "no error")

    chat_create, user = client.chat.completions.create, [{"role": "user", "content": "hi"}]
    raised("embeddings of a chat model", openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="x"))
    raised(
        "an unknown model",
        openai.NotFoundError,
        lambda: chat_create(model="no-such-model", messages=user),
        "model_not_found",
    )
    raised("a bad field", openai.BadRequestError, lambda: chat_create(model=MODEL, messages=user, max_tokens=-1))
    stranger = openai.OpenAI(base_url=base_url, api_key="sk-wrong", max_retries=0)
    raised(
        "a wrong key",
        openai.AuthenticationError,
        lambda: stranger.chat.completions.create(model=MODEL, messages=user),
        "invalid_api_key",
    )


def placement(client, results):
    answers = [
        client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, max_tokens=4)
        for _ in range(4)
    ]
    replicas = {answer.headers["x-gateway-replica"] for answer in answers}
    results.check("placement: one prefix, one replica", len(replicas) == 1, replicas)
    results.check("placement: the request id", all(answer.headers.get("x-request-id") for answer in answers))


def cancel(client, admin, results):
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2000, stream=True)
    next(iter(stream))
    stream.close()
    end = time.monotonic() + 2
    while total(get(f"{admin}/metrics"), "gateway_replica_inflight") and time.monotonic() < end:
        time.sleep(0.02)
    left = total(get(f"{admin}/metrics"), "gateway_replica_inflight")
    results.check("cancel: nothing is left in flight", left == 0, left)


async def at_once(base_url, results):
    client = openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=30)

    async def one(number):
        messages = [{"role": "user", "content": f"Question {number}. " * 50}]
        chunks = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=32, stream=True)
        reasons = [chunk.choices[0].finish_reason async for chunk in chunks if chunk.choices]
        return reasons[-1] is not None

    finished = await asyncio.gather(*(one(number) for number in range(16)))
    await client.close()
    results.check("async: sixteen streams at once", all(finished), finished)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    children, results = Children(), Results()
    base_url, admin, processes = start(sys.argv[1], children)
    client = openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, timeout=30)
    print(f"openai {openai.__version__}")
    for check in (chat, stream, tools, completions, responses, models, placement):
        check(client, results)
    errors(client, base_url, results)
    cancel(client, admin, results)
    asyncio.run(at_once(base_url, results))
    page = get(f"{admin}/metrics")
    bad = [outcome for outcome in ("gateway_error", "upstream_reset", "upstream_protocol_error")
           if total(page, "gateway_requests_total", outcome=outcome)]
    results.check("metrics: nothing went wrong that should not", not bad, bad)
    code = results.finish()
    if code:
        print("\n".join(tail(child) for child in processes))
    return code


if __name__ == "__main__":
    sys.exit(main())
