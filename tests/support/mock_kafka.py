"""librdkafka's mock cluster: `with MockKafka() as kafka`. It speaks Kafka's protocol over TCP, and stores in memory.

The functions that control it are not in confluent-kafka, but in the library that its wheel contains. They take the
names and numbers of rdkafka_mock.h.
"""

import ctypes
import ctypes.util
import time
from functools import cache
from pathlib import Path
from typing import Any, Self

import confluent_kafka

from tests.support.servers import PATIENCE_SECONDS
from tests.support.tcp_proxy import TcpProxy

PRODUCE = 0  # the number of the request in Kafka's protocol
PRODUCER_TYPE = 0


@cache
def library() -> Any:
    """Return the librdkafka that confluent-kafka uses."""
    folder = Path(confluent_kafka.__file__).parent
    candidates = [*folder.parent.glob("confluent_kafka.libs/librdkafka*"), *folder.glob(".dylibs/librdkafka*")]
    found = ctypes.CDLL(str(candidates[0]) if candidates else ctypes.util.find_library("rdkafka"))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, *arguments in (
        ("conf_new", pointer),
        ("conf_set", number, pointer, text, text, text, ctypes.c_size_t),
        ("new", pointer, number, pointer, text, ctypes.c_size_t),
        ("destroy", None, pointer),
        ("mock_cluster_new", pointer, pointer, number),
        ("mock_cluster_destroy", None, pointer),
        ("mock_cluster_bootstraps", text, pointer),
        ("mock_topic_create", number, pointer, text, number, number),
        ("mock_topic_set_error", None, pointer, text, number),
        ("mock_push_request_errors_array", None, pointer, ctypes.c_int16, ctypes.c_size_t, pointer),
        ("mock_broker_set_host_port", number, pointer, ctypes.c_int32, text, number),
        ("mock_broker_set_rtt", number, pointer, ctypes.c_int32, number),
    ):
        function = getattr(found, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return found


class MockKafka:
    """A cluster of one broker, behind a proxy that can cut its connections.

    `behind_proxy`: whether clients are sent to the proxy. The benchmarks must not measure it.
    """

    def __init__(self, *, behind_proxy: bool = True) -> None:
        self._behind_proxy = behind_proxy
        self._library = library()
        settings = self._library.rd_kafka_conf_new()
        error = ctypes.create_string_buffer(512)
        self._library.rd_kafka_conf_set(settings, b"log_level", b"0", error, len(error))
        self._handle = self._library.rd_kafka_new(PRODUCER_TYPE, settings, error, len(error))
        assert self._handle, error.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        self.address: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self.proxy = TcpProxy(int(self.address.rpartition(":")[2]))

    def __enter__(self) -> Self:
        # Clients connect to the address that the broker names, so that has to be the proxy's.
        if self._behind_proxy:
            self._library.rd_kafka_mock_broker_set_host_port(self._cluster, 1, b"127.0.0.1", self.proxy.port)
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__()
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.proxy.port}" if self._behind_proxy else self.address

    def create_topic(self, name: str, partitions: int = 1) -> None:
        self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)

    def refuse_topic(self, name: str, code: int) -> None:
        """Reply with an error to each request for the topic; 0: no longer."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), code)

    def refuse_next(self, *codes: int) -> None:
        """Reply with these errors to the next batches of messages, one each."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, PRODUCE, len(codes), array)

    def delay(self, seconds: float) -> None:
        """Let every reply of the broker take so long."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, int(seconds * 1000))

    def messages(self, topic: str) -> list[Any]:
        """Return the messages of a topic's first partition."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.servers, "group.id": "test", "log_level": 0, "enable.auto.commit": False}
        )
        try:
            partition = confluent_kafka.TopicPartition(topic, 0, 0)
            _, count = consumer.get_watermark_offsets(partition, timeout=PATIENCE_SECONDS)
            consumer.assign([partition])
            found: list[Any] = []
            ends_at = time.monotonic() + PATIENCE_SECONDS
            while len(found) < count and time.monotonic() < ends_at:
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    found.append(message)
            return found
        finally:
            consumer.close()
