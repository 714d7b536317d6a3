"""The application's web server, so to speak: `python -m tests.apps.shop.web` takes orders in transactions.

It prints the results that it waited for.
"""

import dramatiq

from tests.apps.shop.broker import db, results
from tests.apps.shop.tasks import celebrate, flaky, price, tax

with db.connection_context():
    with db.atomic():
        priced = price.send(1)
        chain = dramatiq.pipeline([price.message(2), tax.message_with_options()]).run()
        group = dramatiq.group([price.message(order) for order in (3, 4)])
        group.add_completion_callback(celebrate.message("the group"))
        group.run()
        flaky.send(5, 2)
    with db.atomic() as transaction:
        for actor in (price, tax):
            actor.send(666)
        dramatiq.pipeline([price.message(666), tax.message_with_options()]).run()
        dramatiq.group([price.message(666)]).run()
        transaction.rollback()
    celebrate.send("at once")

answers = [
    priced.get_result(backend=results, block=True, timeout=30_000),
    chain.get_result(block=True, timeout=30_000),
    *sorted(group.get_results(block=True, timeout=30_000)),
]
print("results", *answers)  # noqa: T201 - to whoever waits for it
