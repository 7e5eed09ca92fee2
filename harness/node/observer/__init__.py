"""Watches a training that knows nothing of us, and writes the event log for it. Standard library only.

The harness puts `harness/node/observer/entry` first on the path of what it launches. Python imports the `sitecustomize`
that lies there; it runs the one that it hides, and waits for `import torch`. Then every *signal*, a file in
`harness/node/observer/signals/`, wraps the public entry points that it needs.

A signal is one file:

    AFTER = "torch.optim.optimizer"     the module, or each of several, that it hooks once it was imported
    TELLS = ("steps",)                  kinds of evidence that it promises wherever training is done (see `TELLS` in
                                        `harness.node.emitter`); what may not come is not promised
    def install(watch, module): ...     hooks; `module` is the one imported

Each hook is wrapped by `watch.guard`: an exception in it is told once as `observer.failed`, and the hook is removed.
Nothing here may change what the training computes, nor wait for a device, nor draw from a random generator.
"""
