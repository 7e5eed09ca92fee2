"""Watches a training whose code does not use the harness, and writes its event log. Needs only the standard library.

The harness puts `harness/node/observer/entry` first on the Python path of the trainer. Python imports that folder's
`sitecustomize`, which hooks `import torch` and runs the user's own `sitecustomize`, if any. After `import torch`, each
*signal*, a file in `harness/node/observer/signals/`, wraps the functions that it observes.

A signal is one file:

    AFTER = "torch.optim.optimizer"     the module, or each of several, that it hooks once it was imported
    TELLS = ("steps",)                  kinds of evidence that it promises wherever training is done (see `TELLS` in
                                        `harness.node.emitter`); what may not come is not promised
    def install(watch, module): ...     hooks; `module` is the one imported

Each hook is wrapped by `watch.guard`: an exception in it is logged once as `observer.failed`, and the hook is removed.
No code here may change what the training computes, wait for a device, or use a random generator.
"""
