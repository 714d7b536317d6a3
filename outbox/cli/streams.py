"""`outbox streams`: list the streams and queues that consumers read, and how far the consumers are behind."""

from __future__ import annotations

from dataclasses import asdict

import click

from outbox.admin.durations import format_duration
from outbox.admin.processes import processes
from outbox.admin.streams import stream_groups
from outbox.cli.options import json_option, modules_option
from outbox.cli.output import echo_json, echo_table
from outbox.cli.watch import watch_option
from outbox.current_outbox import current


@click.command(short_help="List streams and queues, and how far their consumers are behind.")
@json_option
@watch_option
@modules_option
def streams(as_json: bool) -> None:
    """List the streams and queues that the running consumers read, those that are furthest behind first.

    Behind are the entries that no consumer was given yet; pending are those that were given to one and are not
    acknowledged. The sum of both is how many are left to do. Consumers (outbox consume) report that every few seconds.
    """
    box = current()
    box.check_schema()
    with box.dialect.connection():
        now = box.dialect.now()
        groups = stream_groups(processes(box.dialect), now)
    if as_json:
        echo_json([asdict(each) | {"depth": each.depth} for each in groups])
    elif not groups:
        click.echo("No consumer of a stream or queue has reported lately.")
    else:
        echo_table(
            ("stream", "kind", "group", "behind", "pending", "processed", "parked", "consumers", "reported"),
            [
                (
                    each.stream,
                    each.kind,
                    each.group if each.kind == "stream" else "",
                    f"{each.behind:,}",
                    f"{each.pending:,}",
                    f"{each.processed:,}",
                    f"{each.parked:,}",
                    each.consumers,
                    f"{format_duration(now - each.seen_at)} ago",
                )
                for each in groups
            ],
            right=range(3, 8),
        )
