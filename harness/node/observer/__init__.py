"""Watches a training that does not know the harness, and writes its event log. Standard library only.

The harness puts `harness/node/observer/entry` first on the Python path of the trainer. Python imports the
`sitecustomize` in this folder, which runs the one that it hides, and waits for `import torch`. Then every *signal*, a
file in `harness/node/observer/signals/`, wraps the public functions that it needs.

A signal is one file:

    AFTER = "torch.optim.optimizer"     the module, or each of several, that it hooks once it was imported
    TELLS = ("steps",)                  kinds of evidence that it promises wherever training is done (see `TELLS` in
                                        `harness.node.emitter`); what may not come is not promised
    def install(watch, module): ...     hooks; `module` is the one imported

Each hook is wrapped by `watch.guard`: an exception in it is logged once as `observer.failed`, and the hook is removed.
No code here may change what the training computes, wait for a device, or use a random generator.
"""
