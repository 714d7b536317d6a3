"""Send requests with httpcore, which httpx is built on, in threads with a connection each (`client="httpx"`).

`transport` keeps connections between exchanges; `thread_pool` sends over several of them; a `connection` sends one
request at a time, through the `network_backend`.
"""
