"""The live page of a game day. Needs the extra `gameday`; nothing here is imported before a page is wanted."""
