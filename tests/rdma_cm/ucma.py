"""Speaks the kernel's interface of /dev/infiniband/rdma_cm (rdma/rdma_user_cm.h, ABI version 4) as
librdmacm does: each command is one write() of a header and a struct, and the answer comes through a
pointer.
"""
import ctypes
import os
import select
import socket
import struct

DEVICE = "/dev/infiniband/rdma_cm"
(CREATE_ID, DESTROY_ID, BIND_IP, RESOLVE_IP, RESOLVE_ROUTE, QUERY_ROUTE, CONNECT, LISTEN, ACCEPT,
 REJECT, DISCONNECT, INIT_QP_ATTR, GET_EVENT, GET_OPTION, SET_OPTION, NOTIFY, JOIN_IP_MCAST,
 LEAVE_MCAST, MIGRATE_ID, QUERY, BIND, RESOLVE_ADDR, JOIN_MCAST, RESOLVE_IB_SERVICE,
 WRITE_EVENT) = range(25)
PS_IPOIB, PS_IB, PS_TCP, PS_UDP = 0x0002, 0x013F, 0x0106, 0x0111
(ADDR_RESOLVED, ADDR_ERROR, ROUTE_RESOLVED, ROUTE_ERROR, CONNECT_REQUEST, CONNECT_RESPONSE,
 CONNECT_ERROR, UNREACHABLE, REJECTED, ESTABLISHED, DISCONNECTED, DEVICE_REMOVAL, MULTICAST_JOIN,
 MULTICAST_ERROR, ADDR_CHANGE, TIMEWAIT_EXIT, ADDRINFO_RESOLVED, ADDRINFO_ERROR, USER,
 INTERNAL) = range(20)
INIT, RTR, RTS = 1, 2, 3
# names of the fields of struct ib_uverbs_qp_attr, in order, and their layout
AH = "16sIBBBxHBBBBBx"
QP_ATTR = "<10I" + AH + AH + "5I2H11B5x"
WAIT_MS = 20000


def sockaddr(ip, port, size=28):
    if ":" in ip:
        raw = struct.pack("<H", socket.AF_INET6) + struct.pack(">HI", port, 0)
        raw += socket.inet_pton(socket.AF_INET6, ip) + bytes(4)
    else:
        raw = struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(ip)
    return raw.ljust(size, b"\0")


def parse_sockaddr(raw):
    family = struct.unpack_from("<H", raw)[0]
    if family == socket.AF_INET:
        return socket.inet_ntoa(raw[4:8]), struct.unpack_from(">H", raw, 2)[0]
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, raw[8:24]), struct.unpack_from(">H", raw, 2)[0]
    return None


def mapped(ip):
    if ":" in ip:
        return socket.inet_pton(socket.AF_INET6, ip)
    return bytes(10) + b"\xff\xff" + socket.inet_aton(ip)


def conn_param(qpn=0, data=b"", resources=4, depth=5, retry=6, rnr=7, srq=0, flow=0, valid=1):
    return struct.pack("<II256s8B", qpn, 0, data, len(data), srq, resources, depth, flow, retry,
                       rnr, valid)


class Event:
    def __init__(self, raw):
        self.uid, self.id, self.kind, self.status = struct.unpack_from("<QIIi", raw)
        param = raw[20:20 + 304]
        self.arg = struct.unpack_from("<Q", param)[0]  # of an application's own
        self.qpn, self.qkey = struct.unpack_from("<II", param)
        # as a connection's parameters
        self.data = param[8:264]
        (self.size, self.srq, self.resources, self.depth, self.flow, self.retry, self.rnr,
         _) = struct.unpack_from("<8B", param, 264)
        # as a datagram's
        self.ah = struct.unpack_from("<" + AH, param, 8)
        self.ud_data = param[40:296]
        self.ud_size = param[296]

    def __repr__(self):
        return f"Event(kind={self.kind}, id={self.id}, uid={self.uid}, status={self.status})"


class QpAttr:
    def __init__(self, raw):
        f = struct.unpack(QP_ATTR, raw)
        (self.mask, self.state, _, self.mtu, _, self.qkey, self.rq_psn, self.sq_psn, self.dest_qpn,
         self.access) = f[:10]
        (self.dgid, _, self.sgid_index, self.hop_limit, _, self.dlid, _, _, _, self.is_global,
         self.ah_port) = f[10:21]
        tail = f[37:]
        self.pkey_index = tail[0]
        (_, _, self.max_rd_atomic, self.max_dest_rd_atomic, self.min_rnr, self.port, self.timeout,
         self.retry, self.rnr, _, _) = tail[2:13]


class Channel:
    def __init__(self, flags=os.O_RDWR | os.O_CLOEXEC):
        self.fd = os.open(DEVICE, flags)

    def close(self):
        os.close(self.fd)

    def raw(self, cmd, body, out=0):
        """Writes a command whose first eight bytes are the pointer, if out is not 0."""
        buffer = ctypes.create_string_buffer(max(out, 1))
        message = struct.pack("<IHH", cmd, len(body), out) + body
        done = os.write(self.fd, message)
        assert done == len(message)
        return buffer.raw[:out]

    def ask(self, cmd, out, fmt, *fields, before=b""):
        buffer = ctypes.create_string_buffer(out)
        body = before + struct.pack("<Q", ctypes.addressof(buffer)) + struct.pack("<" + fmt,
                                                                                    *fields)
        message = struct.pack("<IHH", cmd, len(body), out) + body
        done = os.write(self.fd, message)
        assert done == len(message)
        return buffer.raw

    def create(self, uid, ps=PS_TCP, qp_type=2):
        out = self.ask(CREATE_ID, 4, "HB5x", ps, qp_type, before=struct.pack("<Q", uid))
        return struct.unpack("<I", out)[0]

    def destroy(self, handle):
        return struct.unpack("<I", self.ask(DESTROY_ID, 4, "II", handle, 0))[0]

    def bind(self, handle, ip, port=0):
        # the old command: {response, sockaddr_in6, id}
        self.raw(BIND_IP, bytes(8) + sockaddr(ip, port) + struct.pack("<I", handle))

    def bind_new(self, handle, ip, port=0):
        size = 28 if ":" in ip else 16
        self.raw(BIND, struct.pack("<IHH", handle, size, 0) + sockaddr(ip, port, 128))

    def listen(self, handle, backlog=0):
        self.raw(LISTEN, struct.pack("<II", handle, backlog))

    def resolve(self, handle, ip, port, source=None):
        src = sockaddr(*source) if source else bytes(28)
        self.raw(RESOLVE_IP, src + sockaddr(ip, port) + struct.pack("<II", handle, 2000))

    def resolve_new(self, handle, ip, port):
        size = 28 if ":" in ip else 16
        self.raw(RESOLVE_ADDR, struct.pack("<IIHHI", handle, 2000, 0, size, 0) + bytes(128) +
                 sockaddr(ip, port, 128))

    def resolved(self, uid, ip, port, ps=PS_TCP):
        """A new id that may connect to that address."""
        handle = self.create(uid, ps)
        self.resolve(handle, ip, port)
        event = self.event(ADDR_RESOLVED)
        assert event.uid == uid, f"{event} of another id than {uid}"
        self.route(handle)
        self.event(ROUTE_RESOLVED)
        return handle

    def listening(self, uid, ip="127.0.0.1", port=0, ps=PS_TCP, backlog=0):
        handle = self.create(uid, ps)
        self.bind(handle, ip, port)
        self.listen(handle, backlog)
        return handle

    def port_of(self, handle):
        return self.query_route(handle)["src"][1]

    def route(self, handle):
        self.raw(RESOLVE_ROUTE, struct.pack("<II", handle, 2000))

    def connect(self, handle, **params):
        self.raw(CONNECT, conn_param(**params) + struct.pack("<IIII", handle, 0, 0, 0))

    def accept(self, handle, uid, **params):
        self.raw(ACCEPT, struct.pack("<Q", uid) + conn_param(**params) +
                 struct.pack("<IIII", handle, 0, 0, 0))

    def establish(self, handle):
        self.raw(ACCEPT, bytes(8) + bytes(272) + struct.pack("<IIII", handle, 0, 0, 0))

    def reject(self, handle, data=b"", reason=0):
        self.raw(REJECT, struct.pack("<IBB2x256s", handle, len(data), reason, data))

    def disconnect(self, handle):
        self.raw(DISCONNECT, struct.pack("<I", handle))

    def notify(self, handle, event=4):
        self.raw(NOTIFY, struct.pack("<II", handle, event))

    def qp_attr(self, handle, state):
        return QpAttr(self.ask(INIT_QP_ATTR, struct.calcsize(QP_ATTR), "II", handle, state))

    def write_event(self, handle, kind, status=0, arg=0, tail=b""):
        self.raw(WRITE_EVENT, struct.pack("<IIIIQ", handle, 0, kind, status, arg) + tail)

    def set_option(self, handle, level, name, value):
        buffer = ctypes.create_string_buffer(value, len(value))
        self.raw(SET_OPTION, struct.pack("<QIIII", ctypes.addressof(buffer), handle, level, name,
                                         len(value)))

    def query_route(self, handle):
        raw = self.ask(QUERY_ROUTE, 208, "II", handle, 0)
        names = {"guid": raw[:8], "dgid": raw[8:24], "sgid": raw[24:40]}
        names["src"] = parse_sockaddr(raw[136:164])
        names["dst"] = parse_sockaddr(raw[164:192])
        names["paths"], names["port"] = struct.unpack_from("<IB", raw, 192)
        return names

    def query(self, handle, option, out):
        return self.ask(QUERY, out, "II", handle, option)

    def join(self, handle, ip, uid):
        buffer = ctypes.create_string_buffer(4)
        body = struct.pack("<QQ", ctypes.addressof(buffer), uid) + sockaddr(ip, 0)
        body += struct.pack("<I", handle)
        message = struct.pack("<IHH", JOIN_IP_MCAST, len(body), 4) + body
        assert os.write(self.fd, message) == len(message)
        return struct.unpack("<I", buffer.raw)[0]

    def leave(self, handle):
        return struct.unpack("<I", self.ask(LEAVE_MCAST, 4, "II", handle, 0))[0]

    def migrate(self, handle, from_fd):
        return struct.unpack("<I", self.ask(MIGRATE_ID, 4, "II", handle, from_fd))[0]

    def is_ready(self, wait_ms=0):
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(wait_ms))

    def event(self, kind=None):
        if not self.is_ready(WAIT_MS):
            raise TimeoutError(f"no event in {WAIT_MS} ms, waiting for {kind}")
        event = Event(self.ask(GET_EVENT, 336, ""))
        assert kind is None or event.kind == kind, f"{event} instead of {kind}"
        return event
