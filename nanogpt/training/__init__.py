"""How is a model trained fast, stopped at any moment, and continued with the same bits?

The fast trainer, beyond the lesson's plain loop in fitting.py: recipes, Muon, stages of context,
bfloat16, several processes. A run that is stopped and resumed ends with the weights of one that was
not, and a file that was written is whole. Start at trainer.py, one update from top to bottom, and
loop.py, which repeats it. Below them is what an update needs, then what is kept of a run:

    recipes        the settings of a run, and recipes as data
    loop           `train`: the loop, and how a run is measured, saved and reported
    trainer        one update of the weights

    preparation    the model initialized by its recipe, packed, on the device
    first_weights  initial weights: identity blocks, heads that attend to previous tokens
    epochs         batches: every window of the text once, before any comes again
    optimizers     AdamW, and Muon on batches of matrices
    precision      the precision of its matrix products

    evaluation     the loss on a text
    history        its measurements, while it runs and at its end
    state          everything that the next step depends on
    resume         its files: checkpoints, a log, the state
    folders        locks and markers, and leftovers of a killed run

    processes      several processes, started by torchrun
    signals        signals that end a process, and saving before they do
"""
