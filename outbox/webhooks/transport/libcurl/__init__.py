"""Send requests with libcurl's multi interface: all of them in one thread, the caller's (`client="curl"`).

`transport` keeps multi handles between exchanges; `multi_loop` drives one of them; a `transfer` sends one request at a
time on one easy handle.
"""
