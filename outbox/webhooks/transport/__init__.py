"""Send HTTP requests to receivers of webhooks.

`protocol` is the interface that `Webhook` uses. Two packages implement it: `httpcore_threads` (`client="httpx"`, the
default) and `libcurl` (`client="curl"`). The modules beside them are used by both.
"""
