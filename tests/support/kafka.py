"""A real Apache Kafka for tests and benchmarks: one KRaft node in a process of its own, on free ports.

It needs Java 17, and Maven to download the jars once.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

START_DEADLINE_S = 60
HEAP_MB = 320
_POM = Path(__file__).parent / "broker" / "pom.xml"
_CACHE = Path(__file__).parents[2] / ".cache" / "kafka"
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={protocol}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
inter.broker.listener.name={protocol}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
log.dirs={log_dir}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=2
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
log.retention.check.interval.ms=600000
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""
_SASL = """
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
 username="{user}" password="{password}" user_{user}="{password}";
"""


class KafkaBroker:
    """A broker that may be killed, frozen, and started again with the data on its disk."""

    def __init__(self, folder: Path, *, user: str = "", password: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "port": self.port,
            "controller_port": free_port(),
            "log_dir": folder / "data",
            "protocol": "SASL_PLAINTEXT" if user else "PLAINTEXT",
        }
        text = _PROPERTIES + (_SASL if user else "")
        self._properties.write_text(text.format(user=user, password=password, **values))

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self) -> None:
        """Start the broker and wait until it answers. Raises RuntimeError with the end of its log."""
        if not (self.folder / "data").exists():
            self._format()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_java(HEAP_MB), "kafka.Kafka", str(self._properties)], stdout=log, stderr=log, cwd=self.folder
            )
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Kafka did not start:\n{self.log[-3000:]}")
            time.sleep(0.05)

    def restart_if_down(self) -> None:
        if self._process is None:
            self.start()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def segments(self, topic: str) -> list[bytes]:
        """The stored log of each of the topic's partitions, in the form in which producers sent it."""
        folders = sorted((self.folder / "data").glob(f"{topic}-[0-9]*"))
        return [b"".join(path.read_bytes() for path in sorted(folder.glob("*.log"))) for folder in folders]

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _format(self) -> None:
        command = [*_java(128), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def _answers(self) -> bool:
        # The port opens before the broker has caught up with its controller, but is answered only afterwards.
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.settimeout(1)
                # An ApiVersions request, version 0, without a client id.
                connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
                return len(connection.recv(4)) == 4
        except OSError:
            return False


@contextmanager
def running_kafka(folder: Path, *, user: str = "", password: str = "") -> Iterator[KafkaBroker]:
    broker = KafkaBroker(folder, user=user, password=password)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def _java(heap_mb: int) -> list[str]:
    # Only the C1 compiler: for a broker that lives for seconds, the optimizing compiler only takes the other core.
    quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return ["java", f"-Xmx{heap_mb}m", *quick, "-cp", _classpath()]


def _classpath() -> str:
    """The class path of the jars, which Maven downloads if they are missing."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise RuntimeError(f"the tests' Kafka needs {program}: apt-get install default-jre-headless maven")
    _CACHE.mkdir(parents=True, exist_ok=True)
    listed = _CACHE / f"classpath-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:16]}"
    with (_CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (listed.exists() and all(Path(jar).exists() for jar in listed.read_text().split(":"))):
            goal = ["dependency:build-classpath", "-DincludeScope=runtime", f"-Dmdep.outputFile={listed}"]
            subprocess.run(["mvn", "-q", "-B", "-f", str(_POM), *goal], check=True, capture_output=True, timeout=600)
    return listed.read_text()
