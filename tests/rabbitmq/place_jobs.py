"""Send orders to the application's workers, in no transaction: `python -m tests.rabbitmq.place_jobs NUMBER`."""

import sys

from tests.rabbitmq.jobs import place_order

for number in range(int(sys.argv[1])):
    place_order.send(number)
