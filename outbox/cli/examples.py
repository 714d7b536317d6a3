"""Examples for the help of each command. A test parses every one of them."""

from __future__ import annotations

import click

# By command: how it is called, and what that does.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "archive": (
        ("outbox archive /backup/outbox --dry-run", "how many events are past their retention"),
        ("outbox archive /backup/outbox --verify", "read all files of the archive back"),
    ),
    "audit": (
        ("outbox audit", "who did what"),
        ("outbox audit --about user:7", "whether user:7 was erased"),
    ),
    "bulk": (
        ("outbox bulk", "actions on many events, and how far they are"),
        ("outbox bulk stop 01a1f5ae-5f4d-7000-8f3f-35c61540423f", "stop one after its current batch"),
    ),
    "cleanup": (("outbox cleanup --retention-hours 24 --dry-run", "what ended more than a day ago"),),
    "compat": (("outbox compat shop.events", "check new code against the stored events"),),
    "completion": (('eval "$(outbox completion bash)"', "complete commands and names in this shell"),),
    "consume": (("outbox consume events shop.consumers --group billing", "read the stream `events`"),),
    "dashboard": (("outbox dashboard --port 8642 --read-only", "look, and change nothing"),),
    "delete": (
        ("outbox delete --status delivered --older-than 7d --dry-run", "what would be deleted"),
        ("outbox delete --tenant acme --per-second 200", "slowly, beside normal work"),
    ),
    "deliver": (("outbox deliver shop.handlers", "deliver what is due, here and now"),),
    "destinations": (("outbox destinations", "who gets which events, and what is paused"),),
    "doctor": (
        ("outbox doctor", "what is wrong, and what to do"),
        ("outbox doctor --thorough -m shop.handlers", "with the checks that take longer"),
    ),
    "drain": (("outbox drain --pause --timeout 2m", "before a deployment; then outbox resume --all"),),
    "emit": (("""outbox emit Order 7 order.placed '{"total": 42}'""", "an event, to try the outbox"),),
    "encryption-key": (("outbox encryption-key", "a new key for OUTBOX_ENCRYPTION_KEYS"),),
    "erase": (
        ("outbox erase --subject user:7 --dry-run", "what is held about user:7"),
        ("outbox erase --subject user:7 --pending drop", "also what is not delivered yet"),
    ),
    "export": (("outbox export --status failed --since 2h --output failed.ndjson.gz", "for a closer look"),),
    "fail": (("outbox fail --type invoice.issued --reason 'wrong amounts'", "stop trying these"),),
    "health": (("outbox health --live", "for a liveness probe"), ("outbox health --ready", "for a readiness probe")),
    "init": (
        ("outbox init", "create the tables, or upgrade them"),
        ("outbox init --sql", "print the statements for a migration"),
    ),
    "keys": (("outbox keys", "blocked keys, and by which event"), ("outbox keys order:42", "one key")),
    "list": (
        ("outbox list --status failed --since 2h", "what failed in the last two hours"),
        ('outbox list --destination crm --error "HTTP 422"', "by destination and error"),
        ("outbox list --actor send_mail --watch", "an actor's jobs, again and again"),
    ),
    "metrics": (("outbox metrics --output /var/lib/node_exporter/outbox.prom", "for a text file collector"),),
    "pause": (
        ('outbox pause crm --for 30m --reason "migration of crm"', "send crm nothing for half an hour"),
        ("outbox pause --all", "send nothing to anything"),
    ),
    "periodic": (
        ("outbox periodic", "all periodic jobs with their last and next run"),
        ("outbox periodic run nightly-report", "run one now"),
    ),
    "prove": (("outbox prove shop.handlers --handler welcome", "call it twice, and kill it in between"),),
    "recover": (("outbox recover crm --per-second 50", "crm is back: 50 waiting events a second"),),
    "reencrypt": (("outbox reencrypt --dry-run", "how many rows have another key"),),
    "replay": (("outbox replay --type order.placed --since 2h --to search", "to one destination, again"),),
    "resume": (("outbox resume crm", "end its pause"), ("outbox resume --all", "end the pause of everything")),
    "retire": (("outbox retire old-crm", "no event waits for old-crm any more"),),
    "retry": (
        ("outbox retry --destination crm --since 2h --dry-run", "what would be retried"),
        ("outbox retry 01a1f5ae", "one event, by the first digits of its id"),
        ("outbox retry --waiting --destination crm", "what waits for its next attempt"),
    ),
    "scheduler": (("outbox scheduler shop.jobs", "sweeps, clean-up and periodic jobs"),),
    "schema": (("outbox schema shop.events --json", "the JSON Schema of all declared events"),),
    "show": (("outbox show 01a1f5ae…ed8269", "as outbox list prints the id"),),
    "skip": (("outbox skip --ordering-key order:42", "let the events behind a failed one go on"),),
    "status": (("outbox status --watch", "what waits, what failed and why"),),
    "tail": (("outbox tail --follow --type order.placed", "events as they come, and what becomes of them"),),
    "throttle": (
        ("outbox throttle crm 5 --for 1h", "at most five events a second"),
        ("outbox throttle crm --off", "as fast as it can again"),
    ),
    "streams": (("outbox streams", "what consumers read, and how far they are behind"),),
    "up": (("outbox up shop.handlers", "workers and a scheduler in one process"),),
    "version": (("outbox version", "what a bug report needs"),),
    "worker": (("outbox worker shop.handlers --processes 2 --threads 8", "deliver"),),
}


def add_examples(command: click.Command, name: str) -> None:
    """Add the command's examples to the end of its help."""
    examples = EXAMPLES[name]
    title = "Example" if len(examples) == 1 else "Examples"
    lines = [f"  {call}\n      {meaning}" for call, meaning in examples]
    command.epilog = "\n".join(["\b", f"{title}:", *lines])
