# SPDX-License-Identifier: Apache-2.0
import stand_in

__version__ = "99.0.0"
stand_in.stand_in_for(__name__)
