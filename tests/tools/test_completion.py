# SPDX-License-Identifier: Apache-2.0
"""
The completion of the shells: bash's is called as bash calls it, and has what the help texts have.
"""

import os
import pathlib
import re
import subprocess

from actors import Actor
from case import TOOL, Case

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "completion"
NAME = f"{os.getpid()}.completion"  # no beginning of the name is a beginning in another run

SCRIPT = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2}
# The words as bash breaks them, which the function must not rely on.
COMP_WORDS=("$2") COMP_CWORD=0
spec=$(complete -p ringcast) && function=${spec#*-F } && function=${function%% *}
"$function" ringcast "" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Completion(Case):
    def complete(self, line, breaks=None):
        """The answers for a line, with the cursor at its end."""
        script = SCRIPT if breaks is None else f"COMP_WORDBREAKS='{breaks}'\n{SCRIPT}"
        environment = {**os.environ, "PATH": f"{os.path.dirname(TOOL)}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script, "bash", FOLDER / "ringcast.bash", line],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        self.assertEqual([done.returncode, done.stderr], [0, ""])
        return [word for word in done.stdout.splitlines() if word]

    def commands(self):
        """Each command of the help text, and its options."""
        section = self.succeed("--help").split("COMMANDS\n")[1].split("\n\n")[0]
        names = re.findall(r"(?m)^  (\w+) ", section)
        self.assertLess({"list", "stat", "top", "hz", "doctor", "perf", "help"}, {*names, ""})
        texts = {name: self.succeed(name, "--help") for name in names if name != "help"}
        return {
            name: {"--help", *re.findall(r"--[a-z]+(?:-[a-z]+)*", text)}
            for name, text in texts.items()
        }

    def test_bash_has_every_command_and_option(self):
        commands = self.commands()
        self.assertEqual({*self.complete("ringcast ")}, {*commands, "help", "--help", "--version"})
        self.assertEqual({*self.complete("ringcast help ")}, set(commands))
        for command, options in commands.items():
            self.assertEqual({*self.complete(f"ringcast {command} --")}, options, command)

    def test_bash_answers_by_what_is_typed(self):
        self.assertEqual(self.complete("ringcast st"), ["stat"])
        self.assertEqual(self.complete("ringcast list --n"), ["--names"])
        self.assertEqual(self.complete("ringcast top --format "), ["text", "json"])
        self.assertEqual(self.complete("ringcast top --format j"), ["json"])
        self.assertEqual(self.complete("ringcast top --format=j"), ["json"])
        self.assertEqual(self.complete("ringcast top --interval "), [])
        self.assertEqual(self.complete("ringcast perf la"), ["latency"])
        self.assertEqual(self.complete("ringcast frobnicate "), [])

    def test_bash_has_the_names_of_the_rings(self):
        with Actor() as one, Actor() as two:
            one.ring(NAME)
            self.assertEqual(self.complete(f"ringcast stat {NAME[:-1]}"), [NAME])
            self.assertEqual(self.complete(f"ringcast hz --count 10 {NAME}"), [NAME])
            self.assertEqual(self.complete(f"ringcast stat {NAME}@"), [str(one.pid)])
            two.ring(NAME)
            rest = sorted([str(one.pid), str(two.pid)])
            self.assertEqual(
                sorted(self.complete(f"ringcast stat {NAME}@")),
                rest,
                "bash has broken the word at '@'",
            )
            whole = [f"{NAME}@{pid}" for pid in rest]
            self.assertEqual(sorted(self.complete(f"ringcast stat {NAME}@", breaks=" ")), whole)
            two.ring()
            self.assertIn(str(two.pid), self.complete("ringcast stat @"))
            one.ring(f"{NAME}.a:b")
            self.assertEqual(self.complete(f"ringcast stat {NAME}.a:"), ["b"])
