# SPDX-License-Identifier: Apache-2.0
"""What the processes of a group have left in shared memory: counted, and removed.

Only files of the peers' patterns, of this user, which appeared during the group, and which no living process has
mapped or open: a further run beside this one keeps its files.
"""

import contextlib
import os
from pathlib import Path
from typing import Dict, Iterator, Set, Tuple

PLACES: Dict[str, Tuple[str, ...]] = {
    "/dev/shm": ("*.zenoh", "ecal_*", "psm_*", "sem.*", "vader_segment*", "iox2_*"),
    "/tmp/iceoryx2": ("nodes/**/*", "services/**/*"),
}
ICEORYX = ("/dev/shm/iox2_", "/tmp/iceoryx2/")  # some of these files are neither mapped nor open, but in use


def there() -> Set[Path]:
    """The files of the patterns."""
    found = (path for place, names in PLACES.items() for name in names for path in Path(place).glob(name))
    return {path for path in found if path.is_file()}


def of_process(process: Path) -> Iterator[str]:
    """The paths of all that a process has open or mapped. Files are opened, then mapped, then closed: in this order no
    file is missed."""
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(link)
    with contextlib.suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield line.partition("/")[1] + line.partition("/")[2]


def in_use() -> Set[str]:
    """The files in these places that belong to a living process."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    return {name for process in processes for name in of_process(process) if name.startswith(tuple(PLACES))}


def remove(before: Set[Path]) -> Tuple[int, int]:
    """Remove what was not there before: the number of files, and of their bytes."""
    new = there() - before
    used = in_use() if new else set()
    kept: Tuple[str, ...] = ICEORYX if any(name.startswith(ICEORYX) for name in used) else ()
    count = size = 0
    for path in new:
        if str(path) in used or str(path).startswith(kept):
            continue
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid():
                path.unlink()
                count, size = count + 1, size + status.st_size
    return count, size
