#!/usr/bin/env python3
"""Ten conversations of five turns through the gateway to two real vLLM servers; counters of both sides compared.

Usage: real_vllm.py GATEWAY_BINARY LAB_FOLDER      LAB_FOLDER has venv/ and tiny/; see real_vllm.sh

1. Every conversation stays on one replica (from the access log), and both replicas have some.
2. vLLM found at least nine tenths of what a perfect placement lets it find: the turn before, in whole blocks.
3. The gateway's predicted cached tokens agree with vllm:prefix_cache_hits within a tenth.
4. What vLLM says in `usage` is what it counts.

The gateway does not know the tokenizer; it learns bytes per token from answers. So some short prompts are sent first.
"""

import json
import os
import random
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import Children, Results, free_ports, get, tail, total, wait_for

# Two at a time: a conversation leaves its replica when another one is clearly less busy, and rightly so. With one other
# in flight, the work it can find there (a first turn, 850 tokens) never outweighs the tie of 512 tokens and its own hit.
CONVERSATIONS, TURNS, AT_ONCE = 10, 5, 2
# Prompts that teach the gateway bytes per token, each a twentieth: after 80 its first guess weighs 2 %.
LESSONS = 80
# Tokens in one block of vLLM's cache; the CPU attention takes multiples of 32.
BLOCK = 32
START_SECONDS = 900
TOLERANCE = 0.10
MODEL = "tiny"


def start_vllm(children, lab, port):
    home = lab / "home"
    home.mkdir(exist_ok=True)
    environment = os.environ | {
        "HOME": str(home),
        "PATH": f"{lab}/venv/bin:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    flags = [
        "--load-format", "dummy", "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", port,
        "--dtype", "float32", "--enforce-eager", "--max-model-len", 4096, "--max-num-seqs", 4,
        "--block-size", BLOCK, "--num-gpu-blocks-override", 2048,
        "--enable-prefix-caching", "--enable-prompt-tokens-details",
    ]  # fmt: skip
    command = [lab / "venv/bin/vllm", "serve", lab / "tiny", *flags]
    return children.start(f"vllm-{port}", command, cwd=lab, env=environment)


def words(seed, count):
    """English-like text that no other seed begins with."""
    source = random.Random(seed)
    vowels, others = "aeiou", "bcdfghlmnprst"
    return " ".join(
        "".join(source.choice(others) + source.choice(vowels) for _ in range(source.randint(1, 3)))
        for _ in range(count)
    )


def chat(url, messages, request_id, max_tokens):
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": max_tokens, "temperature": 0})
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def converse(url, number):
    """One conversation. Gives the usage of each turn."""
    messages = [{"role": "system", "content": words(f"system {number}", 500)}]
    usages = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(f"user {number} {turn}", 80)})
        answer = chat(url, messages, f"c{number}-t{turn}", max_tokens=8)
        # The model's own words are random bytes, which do not read back as the tokens that they were.
        messages.append({"role": "assistant", "content": words(f"assistant {number} {turn}", 20)})
        usages.append(answer["usage"])
    return usages


def vllm_counters(ports):
    pages = [get(f"http://127.0.0.1:{port}/metrics") for port in ports]
    return {
        name: sum(total(page, f"vllm:prefix_cache_{name}_total") for page in pages) for name in ("queries", "hits")
    }


def gateway_counters(admin):
    page = get(f"{admin}/metrics")
    return {source: total(page, "gateway_cached_tokens_total", source=source) for source in ("predicted", "reported")}


def replicas_by_conversation(gateway):
    """Replicas that each conversation met, from the access log."""
    met = {}
    for line in gateway.log.read_text().splitlines():
        if not line.startswith('{"'):
            continue
        entry = json.loads(line)
        conversation, _, turn = entry.get("request_id", "").partition("-t")
        if turn:
            met.setdefault(conversation, []).append(entry.get("replica"))
    return met


def settled(read, seconds=10):
    """A counter's reading once it has stopped moving: vLLM publishes a moment after it answers."""
    before = read()
    for _ in range(seconds):
        time.sleep(1)
        now = read()
        if now == before:
            return now
        before = now
    return before


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, lab = sys.argv[1], Path(sys.argv[2])
    children, results = Children(), Results()
    first, second, data, admin_port = free_ports(4)
    ports, url, admin = (first, second), f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin_port}"

    began = time.monotonic()
    # One after the other: each takes minutes of one core to import, and two at once take longer than that.
    servers = []
    for port in ports:
        servers.append(start_vllm(children, lab, port))
        wait_for(f"http://127.0.0.1:{port}/health", servers[-1], START_SECONDS)
        print(f"vLLM on {port} is up after {time.monotonic() - began:.0f} s", flush=True)
    replicas = [word for port in ports for word in ("--replica", f"http://127.0.0.1:{port}")]
    listen = ["--listen", f"127.0.0.1:{data}", "--admin-listen", f"127.0.0.1:{admin_port}"]
    gateway = children.start("gateway", [binary, "serve", *replicas, *listen])
    wait_for(f"{admin}/readyz", gateway, 30)
    end = time.monotonic() + 30
    while total(get(f"{admin}/metrics"), "gateway_replica_up") < 2 and time.monotonic() < end:
        time.sleep(0.2)

    for number in range(LESSONS):
        chat(url, [{"role": "user", "content": words(f"lesson {number}", 200)}], f"lesson-{number}", max_tokens=1)
    before = settled(lambda: vllm_counters(ports))
    predicted_before = gateway_counters(admin)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        usages = list(threads.map(lambda number: converse(url, number), range(CONVERSATIONS)))
    after = settled(lambda: vllm_counters(ports))
    predicted_after = gateway_counters(admin)
    time.sleep(0.5)  # the access log is written beside the requests

    hits, queries = after["hits"] - before["hits"], after["queries"] - before["queries"]
    predicted, reported = (predicted_after[key] - predicted_before[key] for key in ("predicted", "reported"))
    expected = sum(usage["prompt_tokens"] // BLOCK * BLOCK for turns in usages for usage in turns[:-1])
    in_usage = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for turns in usages for usage in turns)
    met = replicas_by_conversation(gateway)
    homes = [turns[0] for turns in met.values() if len(set(turns)) == 1]

    print(f"\n{'conversation':<14}{'replica':<18}{'turns':>6}{'prompt tokens':>15}{'cached, by vLLM':>17}")
    for number, turns in enumerate(usages):
        seen = met.get(f"c{number}", [])
        cached = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for usage in turns)
        where = ", ".join(sorted(set(map(str, seen))))
        print(f"{number:<14}{where:<18}{len(seen):>6}{sum(u['prompt_tokens'] for u in turns):>15}{cached:>17}")
    print(f"\n{'prompt tokens looked up by vLLM':<42}{queries:>10.0f}")
    print(f"{'of them found in its prefix cache':<42}{hits:>10.0f}")
    print(f"{'what perfect placement lets it find':<42}{expected:>10.0f}")
    print(f"{'predicted by the gateway':<42}{predicted:>10.0f}  ({predicted / max(hits, 1) - 1:+.1%} of found)")
    print(f"{'reported in usage':<42}{reported:>10.0f}\n")

    complete = len(met) == CONVERSATIONS and all(len(turns) == TURNS for turns in met.values())
    results.check("every turn is in the access log", complete, met)
    results.check("every conversation stays on its replica", len(homes) == CONVERSATIONS, met)
    counts = {home: homes.count(home) for home in homes}
    results.check("both replicas have conversations", len(counts) == 2 and min(counts.values()) >= 1, counts)
    results.check("vLLM finds what was sent there before", hits >= (1 - TOLERANCE) * expected, (hits, expected))
    results.check("the prediction is within a tenth", abs(predicted - hits) <= TOLERANCE * hits, (predicted, hits))
    results.check("usage says what vLLM counts", reported == in_usage and abs(reported - hits) <= 0.01 * hits, reported)
    code = results.finish()
    if code:
        print("\n".join(tail(child) for child in (*servers, gateway)))
    print(f"{time.monotonic() - began:.0f} s in all")
    return code


if __name__ == "__main__":
    sys.exit(main())
