"""The peers' own programs; each runs in the peers' environment, where our library is not."""
