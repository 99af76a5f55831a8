"""Who listens in this network namespace, or in that of /proc/PID/net, as /proc tells. Clients of
most tools do not wait for their server, so a test has to.
"""


def has_port(net: str, kind: str, port: int, state: str) -> bool:
    for table in (f"{net}/{kind}", f"{net}/{kind}6"):
        with open(table, encoding="ascii") as file:
            rows = [line.split() for line in file]
        if any(row[1].endswith(f":{port:04X}") and row[3] == state for row in rows):
            return True
    return False


def by_tcp(port: int, net="/proc/net") -> bool:
    return has_port(net, "tcp", port, "0A")


def by_udp(port: int, net="/proc/net") -> bool:
    return has_port(net, "udp", port, "07")


def by_rdma_cm(port: int, net="/proc/net") -> bool:
    """An id of Aperture's own rdma_cm: a unix socket with the port in its name."""
    with open(f"{net}/unix", encoding="utf-8", errors="replace") as file:
        ids = [line.split() for line in file if "@aperture/rdma_cm/" in line]
    # flags with __SO_ACCEPTCON
    return any(row[3] == "00010000" and row[7].endswith(f":{port}") for row in ids)
