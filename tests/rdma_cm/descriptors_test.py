"""The hooks under the event channels: descriptors that are copied, closed, inherited, and programs
that never heard of RDMA and must not notice anything.
"""
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import stat
import subprocess
import sys
import unittest

import ucma
from ucma import Channel

SYSFS = "/sys/class/infiniband/aperture0"
HIGHEST = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65536) - 1
libc = ctypes.CDLL(None, use_errno=True)


def is_channel(fd):
    try:
        return stat.S_ISCHR(os.fstat(fd).st_mode)
    except OSError:
        return False


class Case(unittest.TestCase):
    def setUp(self):
        signal.alarm(60)

    def tearDown(self):
        signal.alarm(0)

    def client_of(self, server):
        """An established connection between a new channel and `server`; the new channel."""
        listening = server.listening(1)
        client = Channel()
        handle = client.resolved(2, "127.0.0.1", server.port_of(listening))
        client.connect(handle)
        server.accept(server.event(ucma.CONNECT_REQUEST).id, 3)
        client.event(ucma.CONNECT_RESPONSE)
        client.establish(handle)
        server.event(ucma.ESTABLISHED)
        return client


class Descriptors(Case):
    def test_every_way_to_open_gives_a_character_device(self):
        for flags, blocking, inherits in ((os.O_RDWR, True, True),
                                          (os.O_RDWR | os.O_CLOEXEC, True, False),
                                          (os.O_RDWR | os.O_NONBLOCK, False, True)):
            for name in ("open", "open64", "__open_2", "__open64_2"):
                fd = getattr(libc, name)(ucma.DEVICE.encode(), flags)
                self.assertTrue(is_channel(fd), name)
                self.assertEqual(os.get_blocking(fd), blocking)
                close_on_exec = fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
                self.assertEqual(close_on_exec == 0, inherits)
                os.close(fd)
            for name in ("openat", "openat64", "__openat_2", "__openat64_2"):
                fd = getattr(libc, name)(-100, ucma.DEVICE.encode(), flags)
                self.assertTrue(is_channel(fd), name)
                os.close(fd)

    def test_every_way_to_look_at_it_says_character_device(self):
        channel = Channel()
        buffer = ctypes.create_string_buffer(144)
        for name in ("fstat", "fstat64"):
            self.assertEqual(getattr(libc, name)(channel.fd, buffer), 0)
            self.assertTrue(stat.S_ISCHR(int.from_bytes(buffer.raw[24:28], "little")))
        for name in ("stat", "stat64", "lstat", "lstat64"):
            self.assertEqual(getattr(libc, name)(ucma.DEVICE.encode(), buffer), 0)
            self.assertTrue(stat.S_ISCHR(int.from_bytes(buffer.raw[24:28], "little")))
        channel.close()
        self.assertEqual(libc.fstat(channel.fd, buffer), -1)

    def test_a_copy_is_the_same_channel_until_the_last_is_closed(self):
        server = Channel()
        client = self.client_of(server)
        spare = os.open("/dev/null", os.O_RDONLY)
        copies = [os.dup(client.fd), os.dup2(client.fd, spare),
                  fcntl.fcntl(client.fd, fcntl.F_DUPFD, 100),
                  fcntl.fcntl(client.fd, fcntl.F_DUPFD_CLOEXEC, 100)]
        client.close()
        for fd in copies:
            self.assertTrue(is_channel(fd))
            self.assertFalse(server.is_ready(20))
            client.fd = fd
            client.create(7)
            os.close(fd)
        server.event(ucma.DISCONNECTED)
        server.close()

    def test_something_else_put_in_its_place_ends_it(self):
        server = Channel()
        client = self.client_of(server)
        null = os.open("/dev/null", os.O_WRONLY)
        os.dup2(null, client.fd)
        server.event(ucma.DISCONNECTED)
        self.assertEqual(os.write(client.fd, bytes(8)), 8)
        os.close(client.fd)
        os.close(null)
        server.close()

    def test_close_range_and_closefrom_close_a_channel(self):
        for name, arguments in (("close_range", lambda fd: (fd, fd, 0)),
                                ("closefrom", lambda fd: (fd,))):
            server = Channel()
            client = self.client_of(server)
            high = fcntl.fcntl(client.fd, fcntl.F_DUPFD_CLOEXEC, HIGHEST)
            client.close()
            self.assertFalse(server.is_ready(20))
            getattr(libc, name)(*arguments(high))
            server.event(ucma.DISCONNECTED)
            server.close()

    def test_a_number_that_was_reused_behind_our_back_is_the_new_file(self):
        channel = Channel()
        syscall_close = {"x86_64": 3, "aarch64": 57}[os.uname().machine]
        libc.syscall(syscall_close, channel.fd)
        fillers = []
        while (null := os.open("/dev/null", os.O_WRONLY)) != channel.fd:
            fillers.append(null)
        self.assertEqual(os.write(null, b"x" * 9), 9)
        self.assertTrue(os.fstat(null).st_rdev == os.stat("/dev/null").st_rdev)
        for fd in fillers + [null]:
            os.close(fd)

    def test_epoll_and_select_see_events(self):
        channel = Channel()
        epoll = select.epoll()
        epoll.register(channel.fd, select.EPOLLIN)
        self.assertEqual(epoll.poll(0), [])
        handle = channel.create(1)
        channel.resolve(handle, "127.0.0.1", 7)
        self.assertEqual(epoll.poll(10), [(channel.fd, select.EPOLLIN)])
        self.assertEqual(select.select([channel.fd], [], [], 0)[0], [channel.fd])
        channel.event(ucma.ADDR_RESOLVED)
        self.assertEqual(epoll.poll(0), [])
        channel.close()


class Children(Case):
    def test_a_forked_child_is_told_and_harms_nothing(self):
        server = Channel()
        client = self.client_of(server)
        pid = os.fork()
        if pid == 0:
            try:
                client.create(9)
                os._exit(1)
            except OSError as error:
                client.close()
                server.close()
                os._exit(0 if error.errno == errno.EOPNOTSUPP else 2)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertFalse(server.is_ready(50))
        client.close()
        server.event(ucma.DISCONNECTED)
        server.close()

    def test_a_child_that_was_forked_before_there_was_an_id_has_the_channel(self):
        code = ("import os, ucma\nchannel = ucma.Channel()\n"
                "if os.fork(): os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
                "channel.create(1)\nchannel.resolve(0, '127.0.0.1', 7)\n"
                "channel.event(ucma.ADDR_RESOLVED)\nchannel.close()")
        done = subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(__file__) or ".",
                              check=False)
        self.assertEqual(done.returncode, 0)

    def test_a_child_that_shares_our_memory_until_it_executes_harms_nothing(self):
        server = Channel(os.O_RDWR)
        client = self.client_of(server)
        for keep in (True, False):  # vfork(), closing what it inherits or not
            done = subprocess.run(["/bin/sh", "-c", "exit 3"], close_fds=keep, check=False)
            self.assertEqual(done.returncode, 3)
            self.assertFalse(server.is_ready(50))
        client.create(4)
        client.close()
        server.event(ucma.DISCONNECTED)
        server.close()


class Paths(Case):
    def test_files_of_the_device_are_there(self):
        def text(name):
            with open(SYSFS + name, encoding="ascii") as file:
                return file.read()

        self.assertEqual(text("/node_type"), "1: CA\n")
        self.assertEqual(text("/ports/1/link_layer"), "Ethernet\n")
        self.assertEqual(text("/ports/1/pkeys/0"), "0xffff\n")
        self.assertRegex(text("/node_guid"), "^([0-9a-f]{4}:){3}[0-9a-f]{4}\n$")
        gids = []
        while os.path.exists(f"{SYSFS}/ports/1/gids/{len(gids)}"):
            index = len(gids)
            gids.append(text(f"/ports/1/gids/{index}"))
            self.assertEqual(text(f"/ports/1/gid_attrs/types/{index}"), "RoCE v2\n")
            self.assertRegex(text(f"/ports/1/gid_attrs/ndevs/{index}"), r"^\w.*\n$")
        self.assertIn("0000:0000:0000:0000:0000:ffff:7f00:0001\n", gids)
        with open("/sys/class/misc/rdma_cm/abi_version", encoding="ascii") as file:
            self.assertEqual(file.read(), "4\n")

    def test_neighbours_of_those_files_do_not_exist(self):
        for name in ("x", "/ports/2", "/ports/1/gids/999", "/ports/1/gids/0/", "/ports/1/gids/1x"):
            self.assertFalse(os.path.exists(SYSFS + name), name)
            with self.assertRaises((FileNotFoundError, NotADirectoryError)):
                open(SYSFS + name, encoding="ascii").close()

    def test_nothing_there_can_be_written(self):
        with self.assertRaises(PermissionError):
            os.open(SYSFS + "/node_desc", os.O_WRONLY)
        self.assertFalse(os.access(SYSFS + "/node_desc", os.W_OK))
        self.assertTrue(os.access(SYSFS + "/node_desc", os.R_OK))

    def test_the_path_is_left_to_the_kernel_when_asked(self):
        code = f"import os; raise SystemExit(os.path.exists('{ucma.DEVICE}'))"
        for value, expected in (("kernel", os.path.lexists("/proc/self/root" + ucma.DEVICE)),
                                ("", True)):
            done = subprocess.run([sys.executable, "-c", code], check=False,
                                  env={**os.environ, "APERTURE_RDMA_CM": value})
            self.assertEqual(done.returncode, int(expected))

    def test_the_device_node_is_seen_and_not_opened(self):
        node = "/dev/infiniband/uverbs-aperture0"
        self.assertTrue(stat.S_ISCHR(os.stat(node).st_mode))
        with self.assertRaises(OSError) as caught:
            os.open(node, os.O_RDWR)
        self.assertEqual(caught.exception.errno, errno.ENXIO)

    def test_fopen_reads_what_open_reads(self):
        libc.fopen.restype = ctypes.c_void_p
        libc.fclose.argtypes = [ctypes.c_void_p]
        libc.fgets.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
        line = ctypes.create_string_buffer(64)
        file = libc.fopen((SYSFS + "/node_type").encode(), b"r")
        libc.fgets(line, 64, file)
        libc.fclose(file)
        self.assertEqual(line.value, b"1: CA\n")


class Strangers(Case):
    """Programs that have nothing to do with any of this."""

    def run_it(self, *words, **kwargs):
        return subprocess.run(words, capture_output=True, text=True, timeout=50, check=True,
                              **kwargs).stdout

    def test_shells_use_their_descriptors_as_ever(self):
        script = ("x=$(echo one | cat); exec 3>&1; echo $x >&3; exec 3>&-; "
                  "cat </dev/null; (echo two) 2>&1")
        for shell in ("/bin/sh", "/bin/bash"):
            self.assertEqual(self.run_it(shell, "-c", script), "one\ntwo\n")

    def test_python_uses_its_descriptors_as_ever(self):
        code = ("import subprocess,tempfile,os; f=tempfile.TemporaryFile(); f.write(b'12'); "
                "f.seek(0); print(f.read(), subprocess.check_output(['echo','hi']), "
                "os.stat('/').st_ino > 0, os.path.exists('/nowhere'))")
        self.assertEqual(self.run_it(sys.executable, "-c", code), "b'12' b'hi\\n' True False\n")

    def test_files_are_created_with_the_mode_that_was_asked_for(self):
        out = self.run_it("/bin/sh", "-c", "umask 027; d=$(mktemp -d); touch $d/f; "
                          "stat -c %a $d/f; rm -r $d")
        self.assertEqual(out, "640\n")

    def test_errors_are_those_of_the_call(self):
        for call, arguments in ((os.close, (9999,)), (os.write, (9999, b"x")), (os.dup, (9999,)),
                                (os.fstat, (9999,)), (os.dup2, (9999, 3))):
            with self.assertRaises(OSError) as caught:
                call(*arguments)
            self.assertEqual(caught.exception.errno, errno.EBADF)


if __name__ == "__main__":
    unittest.main(verbosity=2)
