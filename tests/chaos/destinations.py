"""Which events go where, and how workers are told where that is."""

HANDLED, POSTED, STREAMED, EVERYWHERE = "chaos.handled", "chaos.posted", "chaos.streamed", "chaos.everywhere"
HANDLER, WEBHOOK, STREAM = "handler", "webhook", "stream"

# Variables of the workers' environment, and a key in the stream's Redis.
LEDGER, HOOK, BUS, BREAKER = (f"OUTBOX_TEST_CHAOS_{name}" for name in ("LEDGER", "HOOK", "BUS", "BREAKER"))
STREAM_KEY = "events"

DESTINATIONS: dict[str, tuple[str, ...]] = {
    HANDLED: (HANDLER,),
    POSTED: (WEBHOOK,),
    STREAMED: (STREAM,),
    EVERYWHERE: (HANDLER, WEBHOOK, STREAM),
}


def types_for(destination: str) -> list[str]:
    return [kind for kind, destinations in DESTINATIONS.items() if destination in destinations]
