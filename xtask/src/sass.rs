//! What the machine code of kernels says about their loops.

/// Instructions that a loop must not have: fences of the whole device, the stack.
const SLOW: &[&str] = &["MEMBAR", "CCTL", "LDL", "STL"];

/// One kernel's machine code.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Its entry name.
    pub name: String,
    /// Instructions of its longest innermost loop, 0 without loops.
    pub longest_loop: u32,
    /// Instructions within loops that must not be there.
    pub slow: Vec<String>,
}

/// Every kernel in the output of `cuobjdump -sass`.
pub fn read(text: &str) -> Vec<Code> {
    let functions = text.split("Function : ").skip(1);
    functions
        .map(|function| {
            let name = function.lines().next().unwrap_or_default().trim().to_owned();
            let lines: Vec<(u64, &str)> = function.lines().filter_map(instruction).collect();
            code(name, &lines)
        })
        .collect()
}

/// Address and text of a line that is an instruction.
fn instruction(line: &str) -> Option<(u64, &str)> {
    let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    let text = rest.split(';').next()?.trim();
    // A line of nothing but a second word of bits has no text.
    let address = u64::from_str_radix(address, 16).ok()?;
    (!text.is_empty() && address < 1 << 32).then_some((address, text))
}

fn code(name: String, lines: &[(u64, &str)]) -> Code {
    let back = |&(at, text): &(u64, &str)| {
        let to = text.split_once("BRA")?.1.rsplit_once("0x")?.1;
        let to = u64::from_str_radix(to.trim_end_matches(['`', ')', ' ']), 16).ok()?;
        (to < at).then_some((to, at))
    };
    // The end of every function is a branch to itself: no loop.
    let loops: Vec<(u64, u64)> = lines.iter().filter_map(back).collect();
    let holds = |outer: &(u64, u64), at: u64| outer.0 <= at && at <= outer.1;
    let innermost =
        loops.iter().filter(|l| !loops.iter().any(|o| o != *l && holds(l, o.0) && holds(l, o.1)));
    let length = |l: &(u64, u64)| lines.iter().filter(|(at, _)| holds(l, *at)).count();
    let longest_loop = innermost.map(length).max().unwrap_or(0).try_into().unwrap_or(u32::MAX);
    let slow = lines
        .iter()
        .filter(|(at, _)| loops.iter().any(|l| holds(l, *at)))
        .filter_map(|(at, text)| {
            let words = text.split([' ', '.']);
            let slow = words.into_iter().any(|word| SLOW.contains(&word));
            slow.then(|| format!("{at:#06x} {text}"))
        })
        .collect();
    Code { name, longest_loop, slow }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SASS: &str = "
		Function : outer_and_inner
	.headerflags	@\"EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;         /* 0x00000a00ff017b82 */
                                                                  /* 0x000fe20000000800 */
        /*0010*/                   STL [R1], R2 ;                 /* 0x00000a00ff017b82 */
        /*0020*/                   IADD3 R1, R1, 0x1, RZ ;        /* 0x00000a00ff017b82 */
        /*0030*/                   FFMA R1, R1, R1, R2 ;          /* 0x00000a00ff017b82 */
        /*0040*/               @P0 BRA 0x30 ;                     /* 0x00000a00ff017b82 */
        /*0050*/                   LDL.64 R2, [R1] ;              /* 0x00000a00ff017b82 */
        /*0060*/              @!P1 BRA.U 0x20 ;                   /* 0x00000a00ff017b82 */
        /*0070*/                   EXIT ;                         /* 0x00000a00ff017b82 */
        /*0080*/                   BRA 0x80;                      /* 0x00000a00ff017b82 */
		Function : straight
        /*0000*/                   MEMBAR.SC.GPU ;                /* 0x00000a00ff017b82 */
        /*0010*/                   BRA 0x30 ;                     /* 0x00000a00ff017b82 */
        /*0020*/                   CCTL.IVALL ;                   /* 0x00000a00ff017b82 */
        /*0030*/                   EXIT ;                         /* 0x00000a00ff017b82 */
";

    #[test]
    fn loops_are_found() {
        let slow = vec!["0x0050 LDL.64 R2, [R1]".to_owned()];
        let name = |n: &str| n.to_owned();
        assert_eq!(
            read(SASS),
            [
                Code { name: name("outer_and_inner"), longest_loop: 2, slow },
                Code { name: name("straight"), longest_loop: 0, slow: Vec::new() },
            ]
        );
    }
}
