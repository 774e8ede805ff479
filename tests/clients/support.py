"""What the client checks share: child processes that end with the script, free ports, waiting, and a list of results."""

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="gateway-clients-"))


class Children:
    """Processes that this script started. They are ended by their own process group, whatever happens."""

    def __init__(self):
        self.running = []
        atexit.register(self.stop)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def start(self, name, command, **options):
        log = FOLDER / f"{name}.log"
        with open(log, "wb") as output:
            child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )
        child.name, child.log = name, log
        self.running.append(child)
        return child

    def stop(self):
        for force in (signal.SIGTERM, signal.SIGKILL):
            for child in self.running:
                if child.poll() is None:
                    try:
                        os.killpg(child.pid, force)
                    except ProcessLookupError:
                        pass
            end = time.monotonic() + 5
            while time.monotonic() < end and any(child.poll() is None for child in self.running):
                time.sleep(0.05)
        self.running.clear()


def tail(child, lines=15):
    text = child.log.read_text(errors="replace").splitlines()
    return "\n".join(f"  {child.name}: {line}" for line in text[-lines:])


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def get(url, timeout=5):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def wait_for(url, child, seconds):
    """Waits until the URL answers 200; ends the script if the process dies or the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if child.poll() is not None:
            sys.exit(f"{child.name} ended with {child.returncode}:\n{tail(child)}")
        try:
            get(url)
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{child.name} did not answer {url} within {seconds} s:\n{tail(child)}")


def samples(page, name):
    """Samples of one metric: a list of labels and value."""
    found = []
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name:
            found.append((dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', series)), float(value)))
    return found


def total(page, name, **labels):
    rows = samples(page, name)
    return sum(value for have, value in rows if all(have.get(key) == want for key, want in labels.items()))


class Results:
    """Counts what passed, and says what failed."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, good, seen=""):
        self.passed += bool(good)
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}{'' if good else f': {seen!r}'}", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed else 0
