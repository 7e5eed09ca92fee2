"""The strength of each fact from which a breach follows. No other file chooses one."""

from harness.judge.facts.known import By

SEEN = By.SEEN  # by the harness, or told by the process that it accuses
UPDATES = By.TOLD  # only the trainer knows whether it applied an update
GROUP_SIZE = By.TOLD  # a rank tells another size than its group has
FAULT_FREE_SAVES = By.TOLD  # two runs differ, and nothing tells which is right
SAVES_BESIDE = By.TOLD  # content and names of saves, beside other saves of the same trainer only
PASSED_OVER = By.TOLD  # the trainer saw a checkpoint and did not take it
OWN_FIGURES = By.TOLD  # a rank's own loss or samples beside those of other ranks
HIDDEN_SPIKE = By.TOLD  # the reason for which samples are left out, while some steps are not told
TIMES = By.TOLD  # a process tells times of itself and of others
SILENT_RANKS = By.MISSING  # ranks with logs did none of the steps that count
IDLE_NODES = By.MISSING  # nobody tells of a step on these nodes
DEATHS = By.MISSING  # nobody tells another cause of death
NOTHING_SAVED = By.MISSING  # a drill shows nothing if no save was committed
NO_DRILL = By.MISSING  # nobody tried whether a damaged save can be loaded
UNTOLD = By.MISSING  # a figure is told elsewhere only, or nothing tells what is usual
RESTART = By.MISSING  # flaws of a whole restart follow from missing evidence
STANDSTILL = By.MISSING  # no fault explains it

# Strength without a condition, and with it
USUAL = (UNTOLD, SEEN)  # a fault-free run shows what is usual
SAVE_NAMES = (SAVES_BESIDE, SEEN)  # a fault-free run shows how saves are named
NODE_TIMES = (TIMES, SEEN)  # the harness's clock and log are beyond doubt
REPEATS = (By.TOLD, SEEN)  # every repeat shows the same
SAVES = (By.MISSING, SEEN)  # its process told that it is committed
