"""What mpirun starts its daemon on the other host with, instead of ssh: `plm_rsh_agent`.

    remote_shell.py SOCKET HOST COMMAND...      the agent: has COMMAND run by a shell of the other
                                                host, with its own output, and ends as it does

A host knows nothing of the other's processes. So who made both listens at SOCKET, in the file
system that they share, and starts there what the agent asks for.
"""
import array
import os
import socket
import subprocess
import sys
import threading

FDS = 3


class RemoteShell(threading.Thread):
    """Starts on one host what agents of the other ask for, one at a time."""

    def __init__(self, path: str, start):
        """start(command, **how): as Host.start()."""
        super().__init__(daemon=True)
        self.start_command = start
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(path)
        self.listening.listen()
        self.start()

    def run(self):
        while True:
            try:
                agent, _ = self.listening.accept()
            except OSError:  # closed
                return
            with agent:
                said, fds, _, _ = socket.recv_fds(agent, 1 << 20, FDS)
                try:
                    how = dict(zip(("stdin", "stdout", "stderr"), fds))
                    status = self.start_command(["sh", "-c", said.decode()], **how).wait()
                finally:
                    for fd in fds:
                        os.close(fd)
                agent.send(bytes([status & 255]))

    def close(self):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()


def main():
    path, command = sys.argv[1], " ".join(sys.argv[3:])
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        socket.send_fds(there, [command.encode()], range(FDS))
        sys.exit(ord(there.recv(1) or b"\1"))


if __name__ == "__main__":
    main()
