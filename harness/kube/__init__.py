"""Parts of the Kubernetes backend: what it asks the API server for, what runs in the pods, and the lines to them."""
