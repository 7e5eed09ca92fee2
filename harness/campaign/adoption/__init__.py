"""`chaos init`: from the command that starts a trainer of the user's to scenarios for it."""
