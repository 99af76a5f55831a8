"""Who listens in this network namespace, as /proc tells. Clients of most tools do not wait for
their server, so a test has to.
"""


def by_tcp(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as file:
            rows = [line.split() for line in file]
        if any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows):
            return True
    return False


def by_rdma_cm(port: int) -> bool:
    """An id of Aperture's own rdma_cm: a unix socket with the port in its name."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        ids = [line.split() for line in file if "@aperture/rdma_cm/" in line]
    # flags with __SO_ACCEPTCON
    return any(row[3] == "00010000" and row[7].endswith(f":{port}") for row in ids)
