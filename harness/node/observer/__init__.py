"""Observes a training program whose code does not use the harness, and writes its event log. Needs only the standard
library.

The harness puts the folder `harness/node/observer/entry` first on the trainer's Python path. When Python starts, it
imports the harness's module `sitecustomize`, which hooks `import torch`. After `import torch`, each observer (a file in
`harness/node/observer/signals/`, called a signal) wraps the functions that it observes.

An observer is one file, which defines:

    AFTER = "torch.optim.optimizer"     the module, or several modules, whose import is awaited
    TELLS = ("steps",)                  kinds of evidence that the observer always logs (see `TELLS` in
                                        `harness.node.emitter`)
    def install(watch, module): ...     adds the hooks to the imported `module`

Each hook is wrapped by `watch.guard`: an exception in the hook is logged once as `observer.failed`, and the hook is
removed. An observer must not change what the training computes, wait for a GPU, or use a random generator.
"""
