"""Serves the live page of a game day. This package needs the extra `gameday`, and is imported only for the page."""
