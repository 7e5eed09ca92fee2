"""Serves the live page of a game day. Needs the extra `gameday`, and is imported only if a page is wanted."""
