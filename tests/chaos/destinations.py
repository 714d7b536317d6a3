"""Which events go where, and how workers are told where that is."""

HANDLED, POSTED, STREAMED, EVERYWHERE = "chaos.handled", "chaos.posted", "chaos.streamed", "chaos.everywhere"
ARCHIVED = "chaos.archived"
# Emitted only in a run with RabbitMQ.
PUBLISHED = "chaos.published"
# Not an event: a job, by the name of its actor.
JOB = "chaos.job"
# The archive is registered in one worker only.
HANDLER, WEBHOOK, STREAM, ARCHIVE, ACTOR = "handler", "webhook", "stream", "archive", "actor"
QUEUE = "queue"

# Variables of the workers' environment, and a key in the stream's Redis.
LEDGER, ARCHIVE_LEDGER, JOB_LEDGER, HOOK, BUS, BREAKER, RABBITMQ = (
    f"OUTBOX_TEST_CHAOS_{name}"
    for name in ("LEDGER", "ARCHIVE_LEDGER", "JOB_LEDGER", "HOOK", "BUS", "BREAKER", "RABBITMQ")
)
STREAM_KEY = "events"
QUEUE_NAME = "chaos"

# The periodic job.
PERIODIC = "every second"

DESTINATIONS: dict[str, tuple[str, ...]] = {
    HANDLED: (HANDLER,),
    POSTED: (WEBHOOK,),
    STREAMED: (STREAM,),
    EVERYWHERE: (HANDLER, WEBHOOK, STREAM),
    ARCHIVED: (HANDLER, ARCHIVE),
    PUBLISHED: (QUEUE,),
    JOB: (ACTOR,),
}


def types_for(destination: str) -> list[str]:
    return [kind for kind, destinations in DESTINATIONS.items() if destination in destinations]
