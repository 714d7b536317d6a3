"""The metrics of an outbox, as a scrape reads them."""

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from outbox.admin.metrics import exposition
from outbox.core import Outbox

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def families(box: Outbox) -> dict[str, Metric]:
    """Return the exposition, parsed."""
    body, content_type = exposition(box)
    assert content_type.startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def samples(box: Outbox) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families(box).values()
        for sample in family.samples
    }


def value(box: Outbox, name: str, **labels: str) -> float:
    return samples(box)[name, frozenset(labels.items())]
