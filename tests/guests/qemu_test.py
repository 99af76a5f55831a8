"""QEMU's live migration over RDMA: a small guest moves from one process to another by way of
aperture0, and both hold the same memory afterwards.

The guest is a boot sector of this file. It never stops writing, so that pages are sent more than
once; beside what it writes lies content that nobody changes.
"""
import json
import os
import random
import socket
import sys
import time
import unittest

from guest import SECONDS, Guest, users

MEMORY = 32 << 20
WRITTEN = range(0x10000, 0x90000)  # what the guest keeps writing
LOADED_AT = 1 << 20
# 16 bit code, which the BIOS loads to 0x7c00
BOOT = bytes.fromhex(
    "fa"        # cli
    "31c0"      # xor ax, ax
    "40"        # pass: inc ax
    "bb0010"    # mov bx, 0x1000
    "8ec3"      # segment: mov es, bx
    "31ff"      # xor di, di
    "b90080"    # mov cx, 0x8000
    "f3ab"      # rep stosw
    "81c30010"  # add bx, 0x1000
    "81fb0090"  # cmp bx, 0x9000
    "75ed"      # jne segment
    "ebe7").ljust(510, b"\0") + b"\x55\xaa"  # jmp pass


class Machine:
    """One QEMU, and its monitor (QMP)."""

    def __init__(self, guest: Guest, name: str, *options, **how):
        self.guest, self.name = guest, name
        monitor = f"{guest.folder}/{name}"
        self.process = guest.start(
            "qemu-system-x86_64", "-accel", "tcg", "-machine", "pc", "-m", f"{MEMORY >> 20}",
            "-nographic", "-nodefaults", "-no-user-config",
            "-drive", "file=boot,format=raw,if=floppy,snapshot=on",
            "-device", f"loader,file=content,addr={LOADED_AT},force-raw=on",
            "-qmp", f"unix:{monitor},server=on,wait=off", *options, **how)
        self.socket = socket.socket(socket.AF_UNIX)
        guest.addCleanup(self.socket.close)
        self.socket.settimeout(SECONDS)
        guest.wait_until(lambda: self.socket.connect_ex(monitor) == 0, f"{name}'s monitor")
        self.lines = self.socket.makefile("rw")
        guest.addCleanup(self.lines.close)
        self.lines.readline()
        self.do("qmp_capabilities")

    def answer(self, command: str, **arguments) -> dict:
        self.lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.lines.flush()
        while True:
            answer = json.loads(self.lines.readline())
            if "event" not in answer:
                return answer

    def do(self, command: str, **arguments):
        answer = self.answer(command, **arguments)
        self.guest.assertIn("return", answer, f"{self.name}: {command} {arguments}")
        return answer["return"]

    def memory(self) -> bytes:
        path = f"{self.guest.folder}/{self.name}.memory"
        self.do("pmemsave", val=0, size=MEMORY, filename=path)
        with open(path, "rb") as file:
            return file.read()

    def assert_carried(self):
        """Newer ones do not print any more which device they took."""
        with open(f"/proc/{self.process.pid}/maps", encoding="ascii", errors="replace") as maps:
            self.guest.assertIn("/lib/aperture/libibverbs.so.1", maps.read())

    def quit(self) -> str:
        self.do("quit")
        return self.guest.output_of(self.process)


class Qemu(Guest):
    def setUp(self):
        super().setUp()
        self.content = random.randbytes(8 << 20)
        for name, held in (("boot", BOOT), ("content", self.content)):
            with open(f"{self.folder}/{name}", "wb") as file:
                file.write(held)
            os.chmod(f"{self.folder}/{name}", 0o644)

    def wait_until(self, condition, what: str):
        end = time.monotonic() + SECONDS
        while not condition():
            self.assertLess(time.monotonic(), end, f"{what} has been waited for in vain")
            time.sleep(0.05)

    def two_machines(self, pinned: bool, port: int, **how):
        # -S: the guest does not go on at its new place, so the two can be compared
        source, target = (Machine(self, "source", **how),
                          Machine(self, "target", "-S", "-incoming", "defer", **how))
        for machine in (source, target):
            machine.do("migrate-set-capabilities",
                       capabilities=[{"capability": "rdma-pin-all", "state": pinned}])
        # enough of both for a guest that writes without end, on a machine that has other work
        source.do("migrate-set-parameters", **{"max-bandwidth": 1 << 34, "downtime-limit": 10000})
        target.do("migrate-incoming", uri=f"rdma:127.0.0.1:{port}")
        return source, target

    def migrated(self, source: Machine, port: int) -> dict:
        source.do("migrate", uri=f"rdma:127.0.0.1:{port}")
        state = {}

        def over():
            state.update(source.do("query-migrate"))
            return state.get("status") not in ("setup", "active", "device", None)

        self.wait_until(over, "the migration")
        return state

    def migrate(self, pinned: bool, **how):
        port = random.randrange(20000, 30000)
        source, target = self.two_machines(pinned, port, **how)

        def writes():
            source.do("pmemsave", val=WRITTEN[0], size=2, filename=f"{self.folder}/counter")
            with open(f"{self.folder}/counter", "rb") as file:
                return int.from_bytes(file.read(2), "little") > 1

        self.wait_until(writes, "the boot sector")
        state = self.migrated(source, port)
        self.assertEqual(state["status"], "completed", state)
        # the last of what was written is sent after the guest has been stopped
        self.assertGreater(state["ram"]["transferred"], len(self.content))
        self.assertGreater(state["ram"]["dirty-sync-count"], 1)
        self.assertFalse(source.do("query-status")["running"])
        before, after = source.memory(), target.memory()
        self.assertEqual(before[LOADED_AT:LOADED_AT + len(self.content)], self.content)
        differ = [page for page in range(0, MEMORY, 4096)
                  if before[page:page + 4096] != after[page:page + 4096]]
        self.assertEqual(differ, [])
        # and it goes on there
        target.do("cont")
        there = before[WRITTEN[0]:WRITTEN[-1] + 1]
        self.wait_until(lambda: target.memory()[WRITTEN[0]:WRITTEN[-1] + 1] != there, "the guest")
        for machine in (source, target):
            machine.assert_carried()
            machine.quit()

    def test_a_guest_that_writes_moves_with_all_its_memory(self):
        for user in users():
            with self.subTest(user=user):
                self.migrate(pinned=False, user=user)

    def test_a_guest_moves_with_all_its_memory_pinned_at_once(self):
        self.migrate(pinned=True)

    def test_a_guest_stays_where_it_is_when_nobody_waits_for_it(self):
        port = random.randrange(20000, 30000)
        source = Machine(self, "source")
        answer = source.answer("migrate", uri=f"rdma:127.0.0.1:{port}")
        self.assertIn("connecting to destination", answer["error"]["desc"])
        self.assertTrue(source.do("query-status")["running"])
        source.quit()


if __name__ == "__main__":
    sys.exit(unittest.main())
