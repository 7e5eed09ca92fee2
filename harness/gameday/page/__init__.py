"""Serves the live page of a game day. Only the live page uses this package, which needs the pip extra `gameday`."""
