"""Ports of rdma_cm ids: spaces of their own, who holds one, who may share it. Runs under the
preloaded library.
"""
import errno
import os
import socket
import struct
import unittest
from contextlib import contextmanager

import ucma
from two_sides import LOOPBACK, Case, name_of

NOBODY = 65534
SPACES = (ucma.PS_TCP, ucma.PS_UDP, ucma.PS_IPOIB, ucma.PS_IB)


def first_unprivileged_port():
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="ascii") as file:
        return int(file.read())


@contextmanager
def as_nobody():
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


class Ports(Case):
    def test_the_program_itself_may_have_the_number_by_tcp_and_udp_before_and_after(self):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for ps in SPACES:
                with socket.socket(socket.AF_INET, kind) as before, \
                        socket.socket(socket.AF_INET, kind) as after:
                    before.bind(("", 0))
                    port = before.getsockname()[1]
                    self.a.listening(100, "0.0.0.0", port, ps)
                    self.bound_to_one_of_our_numbers(after, ps)

    def bound_to_one_of_our_numbers(self, program, ps):
        """Numbers are free of ids only: a socket of another program may have the one that was
        picked. If ids held sockets of this kind every number would fail.
        """
        numbers = [self.a.port_of(self.a.listening(100, "0.0.0.0", 0, ps)) for _ in range(10)]
        for number in numbers:
            try:
                return program.bind(("", number))
            except OSError as error:
                self.assertEqual(errno.EADDRINUSE, error.errno)
        return self.fail(f"every one of {numbers} is in use")

    def test_a_port_is_a_name_that_can_be_looked_up(self):
        _, port = self.listener()
        with open("/proc/net/unix", encoding="utf-8") as table:
            self.assertIn(f"@aperture/rdma_cm/tcp/{LOOPBACK}:{port}\n", table.read())

    def test_hostile_4_whoever_has_the_name_first_has_the_port_and_we_are_told(self):
        with socket.socket(socket.AF_UNIX) as squatter:
            port = self.a_free_port()
            squatter.bind(name_of("tcp", LOOPBACK, port))
            for ip in (LOOPBACK, "0.0.0.0"):
                self.refused(errno.EADDRINUSE, self.a.bind, self.a.create(1), ip, port)
        _, port = self.listener()
        with socket.socket(socket.AF_UNIX) as squatter:
            self.refused(errno.EADDRINUSE, squatter.bind, name_of("tcp", LOOPBACK, port))

    def test_an_address_is_not_bound_twice(self):
        _, port = self.listener()
        second = self.b.create(1)
        self.refused(errno.EADDRINUSE, self.b.bind, second, LOOPBACK, port)
        bound = self.a.create(2)
        self.a.bind(bound, LOOPBACK, 0)
        third = self.b.create(3)
        self.refused(errno.EADDRINUSE, self.b.bind, third, LOOPBACK,
                     self.a.port_of(bound))

    def test_ports_of_one_number_in_different_spaces_do_not_meet(self):
        for one in SPACES:
            handle, port = self.listener(one)
            for other in SPACES:
                if other != one:
                    self.b.listening(1, LOOPBACK, port, other)
            self.refused(errno.EADDRINUSE, self.b.bind, self.b.create(2, one), LOOPBACK, port)
            self.a.destroy(handle)

    def test_reuse_lets_two_bind_but_one_listen(self):
        first, second = self.a.create(1), self.b.create(2)
        for channel, handle in ((self.a, first), (self.b, second)):
            channel.set_option(handle, 0, 1, struct.pack("<i", 1))
        self.a.bind(first, LOOPBACK, 0)
        port = self.a.port_of(first)
        self.b.bind(second, LOOPBACK, port)
        self.a.listen(first)
        self.refused(errno.EADDRINUSE, self.b.listen, second)

    def test_a_wildcard_has_no_device_and_a_request_to_it_has(self):
        listening = self.a.listening(100, "0.0.0.0")
        route = self.a.query_route(listening)
        self.assertEqual((route["guid"], route["src"][0]), (bytes(8), "0.0.0.0"))
        self.connecting(route["src"][1])
        request = self.a.event(ucma.CONNECT_REQUEST)
        self.assertEqual(self.a.query_route(request.id)["src"], (LOOPBACK, route["src"][1]))

    def test_a_wildcard_of_both_families_hears_both_unless_told(self):
        for only, expect in ((0, ucma.CONNECT_REQUEST), (1, None)):
            listening = self.a.create(100)
            self.a.set_option(listening, 0, 2, struct.pack("<i", only))
            self.a.bind(listening, "::", 0)
            self.a.listen(listening)
            self.connecting(self.a.port_of(listening))
            if expect is None:
                self.assertEqual(self.b.event(ucma.REJECTED).status, 8)
            else:
                self.a.event(expect)

    def test_listening_unbound_takes_any_port(self):
        listening = self.a.create(100)
        self.a.listen(listening)
        self.assertNotEqual(self.a.port_of(listening), 0)

    def test_an_address_that_is_not_ours(self):
        self.refused(errno.EADDRNOTAVAIL, self.a.bind, self.a.create(1), "203.0.113.9")
        self.refused(errno.EADDRNOTAVAIL, self.a.bind, self.a.create(1), "127.0.0.2")

    def test_a_number_that_wants_a_privilege_is_for_those_who_have_it(self):
        if os.geteuid() != 0 or first_unprivileged_port() < 900:
            self.skipTest("wants to be root, where low ports are privileged")
        with as_nobody():
            self.refused(errno.EACCES, self.a.bind, self.a.create(1), LOOPBACK, 801)
            with socket.socket(socket.AF_INET) as probe:
                self.refused(errno.EACCES, probe.bind, (LOOPBACK, 801))
            self.a.bind(self.a.create(2), LOOPBACK, first_unprivileged_port() + 801)
        self.connecting_to_a_listener_at(801)

    def connecting_to_a_listener_at(self, port):
        self.a.listening(100, LOOPBACK, port)
        self.connecting(port)
        self.a.event(ucma.CONNECT_REQUEST)

    def test_hostile_4_a_squatter_on_a_privileged_name_is_not_talked_to(self):
        if os.geteuid() != 0 or first_unprivileged_port() < 900:
            self.skipTest("wants to be root, where low ports are privileged")
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(name_of("tcp", LOOPBACK, 802))
            with as_nobody():
                squatter.listen()
            self.connecting(802)
            self.assertEqual(self.b.event(ucma.REJECTED).status, 8)
            connection, _ = squatter.accept()
            self.assertEqual(connection.recv(1000), b"")  # not a word
            connection.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
