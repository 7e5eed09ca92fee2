"""Who tells each fact from which a breach follows, and so how it is known. No other file chooses that."""

from harness.judge.facts.known import By

SEEN = By.SEEN  # by the harness, or told by the one whom it speaks against
UPDATES = By.TOLD  # whether one was applied
GROUP_SIZE = By.TOLD  # a rank tells another one than its group has
FAULT_FREE_SAVES = By.TOLD  # which of two runs that differ is right
SAVES_BESIDE = By.TOLD  # what saves hold and how they are named, where others of the trainer's are no measure
PASSED_OVER = By.TOLD  # that a checkpoint was seen, and not taken
OWN_FIGURES = By.TOLD  # a rank's own loss or samples beside those of others, or what may not be measured
HIDDEN_SPIKE = By.TOLD  # why samples are left out, where some steps are not told
TIMES = By.TOLD  # by a process, as it is about itself and others
SILENT_RANKS = By.MISSING  # ranks with logs did none of the steps that count
IDLE_NODES = By.MISSING  # nobody tells of a step there
DEATHS = By.MISSING  # nobody tells what else somebody died of
NOTHING_SAVED = By.MISSING  # a drill proves nothing of a job that had committed nothing
NO_DRILL = By.MISSING  # nobody tried whether a damaged save can be loaded
UNTOLD = By.MISSING  # a figure that is told elsewhere, or what is usual
RESTART = By.MISSING  # what is wrong with it as a whole follows from what nobody told of it
STANDSTILL = By.MISSING  # nothing explains it

# By a condition: without it, and with it
USUAL = (UNTOLD, SEEN)  # a fault-free run shows what is usual
SAVE_NAMES = (SAVES_BESIDE, SEEN)  # a fault-free run shows how saves are named
NODE_TIMES = (TIMES, SEEN)  # the harness's clock and log are beyond doubt
REPEATS = (By.TOLD, SEEN)  # the same comes out each time; else it may end elsewhere, and be as far off again
SAVES = (By.MISSING, SEEN)  # its process told that it is committed
