"""Connection management as librdmacm speaks it: every command, each with what is forbidden beside
it. Runs under the preloaded library; two sides are two channels of one process, or two processes.
"""
import ctypes
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import unittest

import ucma
from two_sides import LOOPBACK, Case, name_of
from ucma import Channel

ELSEWHERE = ("203.0.113.9", 7471)  # of nobody: for documentation
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NO_NAMESPACE = 77


class Connecting(Case):
    def test_request_carries_what_the_client_said_and_the_length_that_a_kernel_reports(self):
        _, request = self.requested(qpn=0xABCDEF, data=b"hello", resources=3, depth=9, retry=5,
                                    rnr=6, srq=1, flow=1)
        self.assertEqual(request.uid, 100)  # the listening id's
        self.assertEqual((request.qpn, request.srq, request.flow), (0xABCDEF, 1, 1))
        self.assertEqual((request.resources, request.depth), (9, 3))  # seen from this side
        self.assertEqual((request.retry, request.rnr), (5, 6))
        self.assertEqual(request.size, 56)
        self.assertEqual(request.data[:56], b"hello".ljust(56, b"\0"))

    def test_response_carries_what_the_server_said(self):
        client, request = self.requested()
        self.a.accept(request.id, 101, qpn=0x5678, data=b"welcome", resources=2, depth=1, rnr=3)
        answer = self.b.event(ucma.CONNECT_RESPONSE)
        self.assertEqual((answer.uid, answer.id, answer.status), (200, client, 0))
        self.assertEqual((answer.qpn, answer.resources, answer.depth, answer.rnr),
                         (0x5678, 1, 2, 3))
        self.assertEqual((answer.size, answer.data[:8]), (196, b"welcome\0"))

    def test_established_at_the_server_when_the_client_says_so_and_not_before(self):
        client, request = self.requested()
        self.a.accept(request.id, 101)
        self.b.event(ucma.CONNECT_RESPONSE)
        self.assertFalse(self.a.is_ready(50))
        self.b.establish(client)
        self.assertEqual(self.a.event(ucma.ESTABLISHED).id, request.id)
        self.refused(errno.EINVAL, self.b.establish, client)

    def test_both_sides_know_both_addresses(self):
        client, request = self.requested()
        there, here = self.b.query_route(client), self.a.query_route(request.id)
        self.assertEqual(there["dst"], (LOOPBACK, self.port))
        self.assertEqual(there["src"], here["dst"])
        self.assertEqual(here["src"], there["dst"])
        self.assertNotEqual(there["src"][1], 0)
        for side in (there, here):
            self.assertEqual((side["paths"], side["port"]), (1, 1))
            self.assertEqual(side["dgid"], ucma.mapped(LOOPBACK))
            self.assertNotEqual(side["guid"], bytes(8))

    def test_a_connection_is_made_over_ipv6(self):
        client, request = self.requested(ip="::1")
        self.assertEqual(self.a.query_route(request.id)["src"], ("::1", self.port))
        self.assertEqual(self.b.query_route(client)["dgid"], ucma.mapped("::1"))

    def test_private_data_above_the_limit_is_refused_and_at_the_limit_arrives(self):
        _, port = self.listener()
        client = self.resolved(port)
        self.refused(errno.EINVAL, self.b.connect, client, data=bytes(57))
        self.b.connect(client, data=b"x" * 56)
        request = self.a.event(ucma.CONNECT_REQUEST)
        self.assertEqual(request.data[:56], b"x" * 56)
        self.refused(errno.EINVAL, self.a.accept, request.id, 101, data=bytes(197))
        self.a.accept(request.id, 101, data=b"y" * 196)
        self.assertEqual(self.b.event(ucma.CONNECT_RESPONSE).data[:196], b"y" * 196)

    def test_rejection_carries_its_reason_and_data(self):
        client, request = self.requested()
        self.refused(errno.EINVAL, self.a.reject, request.id, bytes(149))
        self.refused(errno.EINVAL, self.a.reject, request.id, b"", 7)
        self.a.reject(request.id, b"go away")
        event = self.b.event(ucma.REJECTED)
        self.assertEqual((event.id, event.status, event.size), (client, 28, 148))
        self.assertEqual(event.data[:8], b"go away\0")
        self.refused(errno.EINVAL, self.a.accept, request.id, 101)

    def test_a_connect_is_refused_where_nobody_listens(self):
        self.connecting(self.a_free_port())
        self.assertEqual(self.b.event(ucma.REJECTED).status, 8)

    def test_a_server_that_listens_a_moment_later_is_found(self):
        for ps in (ucma.PS_TCP, ucma.PS_UDP):
            port = self.a_free_port(ps)
            client = self.connecting(port, ps)
            self.assertFalse(self.b.is_ready(100))
            self.a.listening(100, LOOPBACK, port, ps)
            request = self.a.event(ucma.CONNECT_REQUEST)
            self.assertEqual(self.a.query_route(request.id)["dst"],
                             self.b.query_route(client)["src"])

    def test_another_kind_of_server_that_talks_or_hangs_up_is_no_service(self):
        for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
            with socket.socket(socket.AF_UNIX) as server:
                port = self.a_free_port()
                server.bind(name_of("tcp", LOOPBACK, port))
                server.listen()
                self.connecting(port)
                connection, _ = server.accept()
                connection.recv(1000)
                connection.sendall(answer)
                connection.close()
                self.assertEqual(self.b.event(ucma.REJECTED).status, 8)

    def test_another_host_is_out_of_reach_from_where_none_is_served(self):
        if not has_route():
            self.skipTest("this host has no route to another")
        self.refused(errno.ENETUNREACH, self.b.resolve, self.b.create(200), *ELSEWHERE)

    def test_a_host_without_a_route_is_not_resolved(self):
        done = subprocess.run([sys.executable, __file__, "unrouted"], capture_output=True,
                              text=True, check=False, timeout=60)
        if done.returncode == NO_NAMESPACE:
            self.skipTest("no network namespace is to be had here")
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "ENETUNREACH"), done.stderr)

    def test_steps_out_of_order_are_refused(self):
        one = self.b.create(1)
        self.refused(errno.EINVAL, self.b.route, one)
        self.refused(errno.EINVAL, self.b.connect, one)
        self.refused(errno.EINVAL, self.b.accept, one, 1)
        self.refused(errno.EINVAL, self.b.disconnect, one)
        self.refused(errno.EINVAL, self.b.reject, one)
        self.b.bind(one, LOOPBACK)
        self.refused(errno.EINVAL, self.b.bind, one, LOOPBACK)
        self.b.listen(one)
        self.refused(errno.EINVAL, self.b.resolve, one, LOOPBACK, 1)
        self.refused(errno.EINVAL, self.b.connect, one, valid=0)

    def test_notify_establishes_before_the_client_does(self):
        client, request = self.requested()
        self.refused(errno.EINVAL, self.a.notify, request.id)
        self.a.accept(request.id, 101)
        self.refused(errno.EINVAL, self.a.notify, request.id, 3)
        self.a.notify(request.id)
        self.a.event(ucma.ESTABLISHED)
        self.refused(errno.EISCONN, self.a.notify, request.id)
        self.b.event(ucma.CONNECT_RESPONSE)
        self.b.establish(client)
        self.assertFalse(self.a.is_ready(50))


class Ending(Case):
    def test_both_sides_hear_of_a_disconnect_and_of_the_end_of_timewait(self):
        client, server = self.established()
        self.b.disconnect(client)
        self.assertEqual(self.a.event(ucma.DISCONNECTED).id, server)
        self.assertEqual(self.b.event(ucma.DISCONNECTED).status, 0)
        self.a.disconnect(server)
        self.assertEqual(self.a.event(ucma.TIMEWAIT_EXIT).id, server)
        self.assertEqual(self.b.event(ucma.TIMEWAIT_EXIT).id, client)
        self.assertFalse(self.a.is_ready(50) or self.b.is_ready(0))

    def test_both_sides_disconnect_at_once(self):
        client, server = self.established()
        self.b.disconnect(client)
        self.a.disconnect(server)
        self.a.event(ucma.DISCONNECTED)
        self.b.event(ucma.DISCONNECTED)

    def test_destroying_an_id_disconnects_the_other(self):
        client, server = self.established()
        self.b.destroy(client)
        self.assertEqual(self.a.event(ucma.DISCONNECTED).id, server)
        self.refused(errno.ENOENT, self.b.disconnect, client)

    def test_closing_the_channel_disconnects_the_other_side(self):
        _, server = self.established()
        self.b.close()
        self.assertEqual(self.a.event(ucma.DISCONNECTED).id, server)

    def test_a_peer_that_is_killed_is_disconnected(self):
        _, port = self.listener()
        child = Child(port)
        try:
            request = self.a.event(ucma.CONNECT_REQUEST)
            self.a.accept(request.id, 101)
            self.a.event(ucma.ESTABLISHED)
        finally:
            child.kill()
        self.assertEqual(self.a.event(ucma.DISCONNECTED).status, 0)

    def test_destroyed_before_the_answer_is_a_rejection(self):
        client, request = self.requested()
        self.a.destroy(request.id)
        event = self.b.event(ucma.REJECTED)
        self.assertEqual((event.id, event.status), (client, 28))

    def test_destroying_a_listener_rejects_requests_that_nobody_has_heard_of(self):
        listening, port = self.listener()
        client = self.connecting(port)
        self.assertTrue(self.a.is_ready(ucma.WAIT_MS))
        self.assertEqual(self.a.destroy(listening), 0)
        self.assertFalse(self.a.is_ready())
        self.assertEqual(self.b.event(ucma.REJECTED).status, 28)

    def test_accepting_a_request_whose_client_has_gone(self):
        client, request = self.requested()
        self.b.destroy(client)
        # it is heard of when it is, never before it is accepted
        self.assertFalse(self.a.is_ready(100))
        self.a.accept(request.id, 101)
        self.assertIn(self.a.event().kind, (ucma.UNREACHABLE, ucma.REJECTED))

    def test_the_port_is_free_again_while_its_connections_live(self):
        self.established()
        self.a.destroy(self.listening)
        self.a.listening(300, LOOPBACK, self.port)


class Addresses(Case):
    def test_the_newer_commands_say_the_same(self):
        listening = self.a.create(100)
        self.a.bind_new(listening, LOOPBACK, 0)
        self.a.listen(listening)
        port = self.a.port_of(listening)
        client = self.b.create(200)
        self.b.resolve_new(client, LOOPBACK, port)
        self.b.event(ucma.ADDR_RESOLVED)
        addr = self.b.query(client, 0, 288)
        self.assertEqual(addr[:8], self.b.query_route(client)["guid"])
        self.assertEqual(struct.unpack_from("<HHH", addr, 10), (0xFFFF, 16, 16))
        self.assertEqual(ucma.parse_sockaddr(addr[144:]), (LOOPBACK, port))
        gid = self.b.query(client, 2, 288)
        self.assertEqual(gid[16 + 8:16 + 24], ucma.mapped(LOOPBACK))
        self.assertEqual(struct.unpack_from("<I", self.b.query(client, 1, 80)), (0,))
        self.b.route(client)
        self.b.event(ucma.ROUTE_RESOLVED)
        path = self.b.query(client, 1, 80)
        self.assertEqual(struct.unpack_from("<I", path), (1,))
        self.assertEqual(path[8 + 8 + 8:8 + 8 + 24], ucma.mapped(LOOPBACK))

    def test_a_path_that_is_given_stands_for_resolving_the_route(self):
        _, port = self.listener()
        client = self.b.create(200)
        self.b.resolve(client, LOOPBACK, port)
        self.b.event(ucma.ADDR_RESOLVED)
        path = struct.pack("<II64x", 1 | 2 | 8 | 32, 0)
        self.refused(errno.EINVAL, self.b.set_option, client, 1, 1, path[:70])
        self.refused(errno.EINVAL, self.b.set_option, client, 1, 1, bytes(72))
        self.b.set_option(client, 1, 1, path)
        self.b.event(ucma.ROUTE_RESOLVED)
        self.b.connect(client)
        self.a.event(ucma.CONNECT_REQUEST)


class QueuePairs(Case):
    def test_attributes_of_a_connection_are_those_agreed(self):
        client, request = self.requested(qpn=0x1234, resources=3, depth=2, retry=5, rnr=4)
        init = self.a.qp_attr(request.id, ucma.INIT)
        # state, access flags, pkey index, port; remote write, read and atomic
        self.assertEqual((init.mask, init.access, init.port), (0x1 | 0x8 | 0x10 | 0x20, 0x30E, 1))
        rtr = self.a.qp_attr(request.id, ucma.RTR)
        self.assertEqual(rtr.mask, 0x1 | 0x80 | 0x100 | 0x1000 | 0x8000 | 0x20000 | 0x100000)
        self.assertEqual((rtr.dest_qpn, rtr.mtu, rtr.max_dest_rd_atomic), (0x1234, 5, 2))
        self.assertEqual((rtr.dgid, rtr.is_global, rtr.ah_port),
                         (ucma.mapped(LOOPBACK), 1, 1))
        rts = self.a.qp_attr(request.id, ucma.RTS)
        self.assertEqual(rts.mask, 0x1 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x10000)
        self.assertEqual((rts.retry, rts.rnr, rts.max_rd_atomic), (5, 4, 3))
        self.refused(errno.EINVAL, self.b.qp_attr, client, ucma.RTR)
        self.a.accept(request.id, 101, qpn=0x5678, resources=2, depth=3)
        self.b.event(ucma.CONNECT_RESPONSE)
        there = self.b.qp_attr(client, ucma.RTR)
        self.assertEqual((there.dest_qpn, there.rq_psn), (0x5678, rts.sq_psn))
        self.assertEqual(self.b.qp_attr(client, ucma.RTS).sq_psn, rtr.rq_psn)
        self.assertEqual(there.max_dest_rd_atomic, 3)

    def test_attributes_before_there_is_a_connection(self):
        _, port = self.listener()
        client = self.resolved(port)
        init = self.b.qp_attr(client, ucma.INIT)
        self.assertEqual((init.mask, init.access), (0x1 | 0x8 | 0x10 | 0x20, 0))
        self.refused(errno.EINVAL, self.b.qp_attr, client, ucma.RTS)
        self.refused(errno.EINVAL, self.b.qp_attr, client, 7)
        self.refused(errno.EINVAL, self.b.qp_attr, self.b.create(9), ucma.INIT)

    def test_attributes_of_a_datagram_id_are_told(self):
        handle = self.a.create(1, ucma.PS_UDP, 4)
        self.a.bind(handle, LOOPBACK)
        attr = self.a.qp_attr(handle, ucma.INIT)
        self.assertEqual((attr.mask, attr.qkey), (0x1 | 0x10 | 0x20 | 0x40, 0x01234567))

    def test_a_timeout_that_was_set_is_in_force(self):
        _, port = self.listener()
        client = self.resolved(port)
        self.refused(errno.EINVAL, self.b.set_option, client, 0, 3, b"\x20")
        self.b.set_option(client, 0, 3, b"\x0b")
        self.b.connect(client)
        self.a.accept(self.a.event(ucma.CONNECT_REQUEST).id, 101)
        self.b.event(ucma.CONNECT_RESPONSE)
        self.assertEqual(self.b.qp_attr(client, ucma.RTS).timeout, 11)


class Datagrams(Case):
    def asked(self, data=b"?", ip=LOOPBACK):
        _, self.port = self.listener(ucma.PS_UDP, ip)
        client = self.resolved(self.port, ucma.PS_UDP, ip)
        self.b.connect(client, data=data)
        return client, self.a.event(ucma.CONNECT_REQUEST)

    def test_a_service_is_resolved(self):
        client, request = self.asked(b"who are you")
        self.assertEqual((request.ud_size, request.ud_data[:12]), (180, b"who are you\0"))
        self.a.accept(request.id, 101, qpn=0x77, data=b"me")
        event = self.b.event(ucma.ESTABLISHED)
        self.assertEqual((event.id, event.qpn, event.qkey), (client, 0x77, 0x01234567))
        self.assertEqual((event.ud_size, event.ud_data[:3]), (136, b"me\0"))
        self.assertEqual(event.ah[0], ucma.mapped(LOOPBACK))
        self.assertFalse(self.a.is_ready(50))

    def test_a_service_is_resolved_over_ipv6(self):
        _, request = self.asked(ip="::1")
        self.a.accept(request.id, 101, qpn=0x77)
        self.assertEqual(self.b.event(ucma.ESTABLISHED).ah[0], ucma.mapped("::1"))

    def test_repeated_question_is_one_request(self):
        client, request = self.asked()
        self.assertFalse(self.a.is_ready(700))  # it has been asked again by now
        self.a.accept(request.id, 101, qpn=0x77)
        self.assertEqual(self.b.event(ucma.ESTABLISHED).id, client)

    def test_a_refusal_ends_the_asking(self):
        _, request = self.asked()
        self.a.reject(request.id, b"no")
        self.assertEqual(self.b.event(ucma.UNREACHABLE).status, 2)

    def test_a_resolution_fails_where_nobody_is(self):
        self.connecting(self.a_free_port(ucma.PS_UDP), ucma.PS_UDP)
        self.assertEqual(self.b.event(ucma.UNREACHABLE).status, 1)

    def test_private_data_above_the_limit_is_refused(self):
        _, port = self.listener(ucma.PS_UDP)
        client = self.resolved(port, ucma.PS_UDP)
        self.refused(errno.EINVAL, self.b.connect, client, data=bytes(181))
        self.b.connect(client, data=bytes(180))
        request = self.a.event(ucma.CONNECT_REQUEST)
        self.refused(errno.EINVAL, self.a.accept, request.id, 101, data=bytes(137))

    def test_rubbish_at_the_port_is_no_request(self):
        _, port = self.listener(ucma.PS_UDP)
        mine = name_of("udp", LOOPBACK, self.a_free_port(ucma.PS_UDP))
        for name in (None, "\0another name", mine):
            for size in (0, 1, 16, 204, 205, 236, 2000):
                with socket.socket(socket.AF_UNIX) as stranger:
                    if name:
                        stranger.bind(name)
                    stranger.connect(name_of("udp", LOOPBACK, port))
                    try:
                        stranger.sendall(os.urandom(size))
                    except OSError as error:  # who has no port is turned away
                        self.assertIn(error.errno, (errno.EPIPE, errno.ECONNRESET))
        self.assertFalse(self.a.is_ready(100))

    def test_groups_are_joined_and_left(self):
        handle = self.a.create(1, ucma.PS_UDP)
        self.a.bind(handle, LOOPBACK)
        membership = self.a.join(handle, "239.1.2.3", 55)
        event = self.a.event(ucma.MULTICAST_JOIN)
        self.assertEqual((event.uid, event.id, event.status), (55, membership, 0))
        self.assertEqual((event.qpn, event.qkey), (0xFFFFFF, 0x01234567))
        self.assertEqual((event.ah[0], event.ah[5]), (ucma.mapped("239.1.2.3"), 0xC000))
        self.assertEqual(self.a.leave(membership), 1)
        self.refused(errno.ENOENT, self.a.leave, membership)
        self.a.join(handle, "239.1.2.4", 56)
        self.assertEqual(self.a.destroy(handle), 1)  # the second event was never fetched

    def test_groups_are_for_datagram_ids_with_a_device(self):
        connected = self.a.create(1)
        self.a.bind(connected, LOOPBACK)
        self.refused(errno.EINVAL, self.a.join, connected, "239.1.2.3", 5)
        unbound = self.a.create(2, ucma.PS_UDP)
        self.refused(errno.EINVAL, self.a.join, unbound, "239.1.2.3", 5)

    def test_a_group_is_resolved_as_a_destination(self):
        handle = self.b.create(1, ucma.PS_UDP)
        self.b.bind(handle, LOOPBACK)
        self.b.resolve(handle, "239.1.2.3", 7)
        self.b.event(ucma.ADDR_RESOLVED)
        self.assertEqual(self.b.query_route(handle)["dgid"], ucma.mapped("239.1.2.3"))


class Events(Case):
    def test_destroy_says_how_many_events_were_handed_out(self):
        client, server = self.established()
        self.assertEqual(self.b.destroy(client), 3)  # addr, route, response
        self.a.event(ucma.DISCONNECTED)
        self.assertEqual(self.a.destroy(server), 2)
        self.assertEqual(self.a.destroy(self.listening), 1)

    def test_without_events_a_nonblocking_channel_says_so(self):
        channel = Channel(os.O_RDWR | os.O_NONBLOCK)
        self.refused(errno.EAGAIN, channel.ask, ucma.GET_EVENT, 336, "")
        channel.close()
        os.set_blocking(self.a.fd, False)
        self.refused(errno.EAGAIN, self.a.ask, ucma.GET_EVENT, 336, "")

    def test_waiting_for_an_event_can_be_interrupted(self):
        def handler(*_):
            raise InterruptedError

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with self.assertRaises(InterruptedError):
                self.a.ask(ucma.GET_EVENT, 336, "")
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_the_channel_is_readable_exactly_while_events_wait(self):
        _, port = self.listener()
        clients = [self.b.create(200 + i) for i in range(100)]
        for client in clients:
            self.b.resolve(client, LOOPBACK, port)
        for i, client in enumerate(clients):
            self.assertTrue(self.b.is_ready())
            self.assertEqual(self.b.event(ucma.ADDR_RESOLVED).uid, 200 + i)
        self.assertFalse(self.b.is_ready())

    def test_more_requests_than_the_backlog_are_rejected(self):
        _, port = self.listener(backlog=2)
        clients = [self.resolved(port, uid=200 + i) for i in range(3)]
        for client in clients[:2]:
            self.b.connect(client)
        first = self.a.event(ucma.CONNECT_REQUEST)
        self.b.connect(clients[2])  # there is room again
        second = self.a.event(ucma.CONNECT_REQUEST)
        third = self.a.event(ucma.CONNECT_REQUEST)
        self.assertEqual(len({first.id, second.id, third.id}), 3)
        more = [self.resolved(port, uid=300 + i) for i in range(3)]
        for client in more:
            self.b.connect(client)
        self.assertEqual(self.b.event(ucma.REJECTED).status, 28)

    def test_an_id_moves_to_another_channel_with_its_events(self):
        client, server = self.established()
        self.b.disconnect(client)
        self.assertTrue(self.a.is_ready(ucma.WAIT_MS))
        other = Channel()
        self.assertEqual(other.migrate(server, self.a.fd), 1)
        self.assertFalse(self.a.is_ready())
        self.assertEqual(other.event(ucma.DISCONNECTED).id, server)
        self.refused(errno.EINVAL, self.a.disconnect, server)
        other.disconnect(server)
        other.close()

    def test_an_application_writes_events_of_its_own_behind_those_that_wait(self):
        handle = self.a.create(77)
        self.a.resolve(handle, LOOPBACK, 7471)
        self.a.write_event(handle, ucma.USER, status=5, arg=0x1234567890ABCDEF)
        self.a.write_event(handle, ucma.INTERNAL, arg=16, tail=bytes(280))
        events = {}
        for _ in range(3):
            event = self.a.event()
            events[event.kind] = event
        self.assertEqual(set(events), {ucma.ADDR_RESOLVED, ucma.USER, ucma.INTERNAL})
        own = events[ucma.USER]
        self.assertEqual((own.uid, own.id, own.status, own.arg),
                         (77, handle, 5, 0x1234567890ABCDEF))
        self.assertEqual(events[ucma.INTERNAL].arg, 16)
        self.assertEqual(self.a.destroy(handle), 3)

    def test_events_of_other_kinds_or_of_other_ids_are_not_written(self):
        handle = self.a.create(77)
        for kind in (ucma.ESTABLISHED, ucma.ADDRINFO_RESOLVED, 20):
            self.refused(errno.EINVAL, self.a.write_event, handle, kind)
        self.refused(errno.EINVAL, self.b.write_event, handle, ucma.USER)
        self.refused(errno.ENOENT, self.a.write_event, 999, ucma.USER)
        self.assertFalse(self.a.is_ready())

    def test_a_subnet_manager_is_not_asked(self):
        handle = self.a.create(77)
        self.refused(errno.EOPNOTSUPP, self.a.raw, ucma.RESOLVE_IB_SERVICE,
                     struct.pack("<II", handle, 0) + bytes(88))

    def test_addresses_of_infiniband_are_refused(self):
        handle = self.a.create(77, ucma.PS_IB)
        raw = struct.pack("<H", 27).ljust(128, b"\0")
        self.refused(errno.EINVAL, self.a.raw, ucma.BIND,
                     struct.pack("<IHH", handle, 48, 0) + raw)
        self.refused(errno.EINVAL, self.a.raw, ucma.RESOLVE_ADDR,
                     struct.pack("<IIHHI", handle, 2000, 0, 48, 0) + bytes(128) + raw)
        self.a.bind_new(handle, LOOPBACK)

    def test_migrating_from_what_is_no_channel(self):
        handle = self.a.create(1)
        self.refused(errno.ENOENT, self.b.migrate, handle, 0)
        self.refused(errno.EINVAL, self.b.migrate, handle, self.b.fd)


class Interface(Case):
    def test_commands_that_do_not_exist_are_refused(self):
        self.refused(errno.EINVAL, self.a.raw, 25, bytes(64))
        self.refused(errno.ENOSYS, self.a.raw, ucma.GET_OPTION, bytes(64))
        self.refused(errno.EINVAL, os.write, self.a.fd, b"1234567")
        self.refused(errno.EINVAL, os.write, self.a.fd, struct.pack("<IHH", 0, 24, 4))

    def test_commands_that_are_cut_short(self):
        for cmd in range(25):
            if cmd in (ucma.GET_OPTION, ucma.GET_EVENT):
                continue
            with self.assertRaises(OSError) as caught:
                self.a.raw(cmd, bytes(3), 512)
            self.assertEqual(caught.exception.errno, errno.EINVAL, cmd)

    def test_answers_without_room_are_refused(self):
        body = struct.pack("<QQHB5x", 1, 1, ucma.PS_TCP, 2)
        message = struct.pack("<IHH", ucma.CREATE_ID, len(body), 3) + body
        self.refused(errno.ENOSPC, os.write, self.a.fd, message)

    def test_bad_pointers_are_refused(self):
        for pointer in (0, 8, 2**64 - 8):
            body = struct.pack("<QQHB5x", 1, pointer, ucma.PS_TCP, 2)
            message = struct.pack("<IHH", ucma.CREATE_ID, len(body), 4) + body
            self.refused(errno.EFAULT, os.write, self.a.fd, message)
        self.assertEqual(self.a.create(1), 0)  # nothing is left of the others

    def test_unknown_port_spaces_are_refused(self):
        for ps in (0, 1, 0xFFFF):
            self.refused(errno.EINVAL, self.a.create, 1, ps)
        self.a.create(1, ucma.PS_IPOIB, 4)

    def test_in_the_ib_space_the_kind_of_queue_pair_decides(self):
        _, port = self.listener(ucma.PS_IB)
        self.connecting(port, ucma.PS_IB)
        self.assertEqual(self.a.event(ucma.CONNECT_REQUEST).size, 56)
        listening = self.a.create(100, ucma.PS_IB, 4)
        self.a.bind(listening, LOOPBACK)
        self.a.listen(listening)
        client = self.b.create(201, ucma.PS_IB, 4)
        self.b.resolve(client, LOOPBACK, self.a.port_of(listening))
        self.b.event(ucma.ADDR_RESOLVED)
        self.b.route(client)
        self.b.event(ucma.ROUTE_RESOLVED)
        self.b.connect(client, data=bytes(180))
        self.assertEqual(self.a.event(ucma.CONNECT_REQUEST).ud_size, 180)

    def test_ids_of_another_channel_and_of_nobody_are_refused(self):
        handle = self.a.create(1)
        self.refused(errno.EINVAL, self.b.destroy, handle)
        self.refused(errno.ENOENT, self.b.destroy, 12345)
        self.a.destroy(handle)
        self.refused(errno.ENOENT, self.a.destroy, handle)

    def test_options_that_do_not_exist_are_refused(self):
        handle = self.a.create(1)
        self.refused(errno.ENOSYS, self.a.set_option, handle, 0, 77, b"1")
        self.refused(errno.ENOSYS, self.a.set_option, handle, 5, 0, b"1")
        self.refused(errno.EINVAL, self.a.set_option, handle, 0, 1, b"1")
        self.a.set_option(handle, 0, 0, b"\x10")

    def test_a_bad_pointer_while_events_wait(self):
        _, port = self.listener()
        client = self.b.create(200)
        self.b.resolve(client, LOOPBACK, port)
        body = struct.pack("<Q", 8)
        message = struct.pack("<IHH", ucma.GET_EVENT, len(body), 336) + body
        self.refused(errno.EFAULT, os.write, self.b.fd, message)
        self.b.event(ucma.ADDR_RESOLVED)  # it was not lost


class Child:
    """Another process that has connected to a port, until it is killed."""

    def __init__(self, port):
        self.pid = os.posix_spawn(sys.executable, [sys.executable, __file__, "connect", str(port)],
                                  os.environ)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def has_route():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
        except OSError as error:
            assert error.errno == errno.ENETUNREACH, error
            return False
        return True


def resolve_without_a_route():
    """In a network namespace of its own, which has no address but that of loopback."""
    unshare = ctypes.CDLL(None).unshare
    if unshare(CLONE_NEWNET) != 0 and unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        sys.exit(NO_NAMESPACE)
    signal.alarm(50)
    assert not has_route()
    channel = Channel()
    try:
        channel.resolve(channel.create(1), *ELSEWHERE)
    except OSError as error:
        print(errno.errorcode[error.errno])


def connect_and_wait(port):
    signal.alarm(60)
    channel = Channel()
    handle = channel.resolved(1, LOOPBACK, port)
    channel.connect(handle)
    channel.event(ucma.CONNECT_RESPONSE)
    channel.establish(handle)
    signal.pause()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "connect":
        connect_and_wait(int(sys.argv[2]))
    elif sys.argv[1:] == ["unrouted"]:
        resolve_without_a_route()
    else:
        unittest.main(verbosity=2)
