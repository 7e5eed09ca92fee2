"""Taking in a trainer that is not ours: from the command that starts it to scenarios for it (`chaos init`)."""
