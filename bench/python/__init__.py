# SPDX-License-Identifier: Apache-2.0
"""What ringcast does with Python objects, measured beside pickle, gloo and the engines' own
broadcasts."""
