"""The application's web server, so to speak: `python -m tests.sentinel.place_orders NUMBER` sends tasks."""

import sys

from tests.sentinel.shop import place_order

for number in range(int(sys.argv[1])):
    place_order.send(number)
