"""A fabric_player on a host (fabric_player.cpp says what it can be told)."""
import json
import os
import select
import signal
import time

import two_hosts

SECONDS = 60  # that anybody has for an answer


class Player:
    def __init__(self, host: two_hosts.Host, program: str, *options: str, env=None, stderr=None):
        self.host = host
        self.process = host.start([program, *options], env=env, stdin=-1, stderr=stderr,
                                  text=False, errors=None, bufsize=0)
        self.readable = select.poll()
        self.readable.register(self.process.stdout, select.POLLIN)
        self.had = b""
        said = self.line()
        if said != "ready":
            raise AssertionError(f"{program} {options}: {said}")
        self.pid = two_hosts.child_of(self.process.pid)

    def line(self, seconds: float = SECONDS) -> str:
        end = time.monotonic() + seconds
        while b"\n" not in self.had:
            left = end - time.monotonic()
            if left <= 0 or not self.readable.poll(left * 1e3):
                raise AssertionError(f"no answer within {seconds} s")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise AssertionError(f"it ended: {self.process.wait(10)}; {self.had!r}")
            self.had += more
        line, _, self.had = self.had.partition(b"\n")
        return line.decode()

    def tell(self, what: str):
        self.process.stdin.write(f"{what}\n".encode())

    def ask(self, what: str, seconds: float = SECONDS) -> str:
        self.tell(what)
        return self.line(seconds)

    def look(self, what="look") -> dict:
        return json.loads(self.ask(what))

    def numbers(self, what: str, seconds: float = SECONDS) -> list[int]:
        return [int(word) for word in self.ask(what, seconds).split()]

    def know(self, other: "Player", end=0) -> int:
        """The number under which it knows that one's endpoint and region."""
        return int(self.ask(f"peer {other.ask(f'name {end}')} {other.ask('region')}"))

    def once(self, kind: str, peer: int, size: int, ms=20000, end=0) -> tuple[int, float]:
        """How an operation ended (0: well), and after how many seconds."""
        code, ns = self.numbers(f"once {kind} {end} {peer} {size} {ms}", SECONDS + ms / 1000)
        return code, ns / 1e9

    def until(self, condition, seconds: float = SECONDS) -> dict:
        """What it says once the condition of that holds, or time is up."""
        end = time.monotonic() + seconds
        while True:
            seen = self.look()
            if condition(seen) or time.monotonic() > end:
                return seen
            time.sleep(0.005)

    def signal(self, number: int):
        if number == signal.SIGCONT:  # nsenter stops with what it has started
            os.kill(self.process.pid, number)
        os.kill(self.pid, number)

    def kill(self) -> int:
        """When, by the clock that players use."""
        at = time.monotonic_ns()
        self.signal(signal.SIGKILL)
        os.kill(self.process.pid, signal.SIGCONT)  # nsenter, which a stop has stopped too
        self.process.wait()
        return at

    def end(self):
        if self.process.poll() is None:
            self.kill()
        self.process.stdin.close()
        self.process.stdout.close()

    def status(self, name: str) -> int:
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1])
        raise KeyError(name)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def sleeps(self) -> dict[str, int]:
        """How often each of its threads has gone to sleep so far."""
        counts = {}
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/status", encoding="ascii") as file:
                lines = dict(line.split(":", 1) for line in file)
            counts[f"{lines['Name'].strip()} {task}"] = int(lines["voluntary_ctxt_switches"])
        return counts
