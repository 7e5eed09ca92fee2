"""What runs inside a container node, and the plain data it is created from."""
