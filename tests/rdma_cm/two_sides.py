"""Two channels of one process, the two sides of a connection: what tests of commands share."""
import errno
import signal
import unittest

import ucma
from ucma import Channel

LOOPBACK = "127.0.0.1"


def name_of(space, ip, port):
    return f"\0aperture/rdma_cm/{space}/{ip}:{port}"


class Case(unittest.TestCase):
    def setUp(self):
        signal.alarm(60)  # whatever hangs is a failure
        self.a = Channel()
        self.b = Channel()

    def tearDown(self):
        for channel in (self.a, self.b):
            try:
                channel.close()
            except OSError:
                pass
        signal.alarm(0)

    def refused(self, error, call, *args, **kwargs):
        with self.assertRaises(OSError) as caught:
            call(*args, **kwargs)
        self.assertEqual(errno.errorcode[caught.exception.errno], errno.errorcode[error])

    def listener(self, ps=ucma.PS_TCP, ip=LOOPBACK, backlog=0, uid=100):
        handle = self.a.listening(uid, ip, 0, ps, backlog)
        return handle, self.a.port_of(handle)

    def a_free_port(self, ps=ucma.PS_TCP):
        handle = self.a.create(100, ps)
        self.a.bind(handle, LOOPBACK)
        port = self.a.port_of(handle)
        self.a.destroy(handle)
        return port

    def resolved(self, port, ps=ucma.PS_TCP, ip=LOOPBACK, uid=200):
        return self.b.resolved(uid, ip, port, ps)

    def connecting(self, *where):
        client = self.resolved(*where)
        self.b.connect(client)
        return client

    def requested(self, ip=LOOPBACK, **params):
        """A request under way: the client's id, the event at the server."""
        self.listening, self.port = self.listener(ip=ip)
        client = self.resolved(self.port, ip=ip)
        self.b.connect(client, **params)
        return client, self.a.event(ucma.CONNECT_REQUEST)

    def established(self):
        client, request = self.requested(qpn=0x1234)
        self.a.accept(request.id, 101, qpn=0x5678)
        self.b.event(ucma.CONNECT_RESPONSE)
        self.b.establish(client)
        self.assertEqual(self.a.event(ucma.ESTABLISHED).uid, 101)
        return client, request.id
