"""Run a command and end as it ends: `grade` puts this process between itself and a lesson.

    python -I apart.py PIPE COMMAND...

The parent process that a lesson finds, and may kill, is this one. PIPE stays open for the command.
"""

import os
import subprocess
import sys

if __name__ == "__main__":
    pipe, *command = sys.argv[1:]
    code = subprocess.call(command, pass_fds=[int(pipe)])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
