//! `judge FOLDER POOL [--kernel|--kernel-2.4]`: lets OpenZFS check the images of a pool.
//!
//! With `--kernel` its module also reads every file and attribute, and the result is compared with our
//! reader. The exit status is 0 if no error is found, 1 if there are errors, 75 if no judge is available.

use anyhow::{Result, bail};
use millpond_tests::oracle::{Verdict, kernel, zdb};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, pool, release) = match &arguments[..] {
        [folder, pool] => (folder, pool, None),
        [folder, pool, option] if option == "--kernel" => {
            (folder, pool, Some(kernel::Release::V2_3))
        }
        [folder, pool, option] if option == "--kernel-2.4" => {
            (folder, pool, Some(kernel::Release::V2_4))
        }
        _ => bail!("usage: judge FOLDER POOL [--kernel|--kernel-2.4]"),
    };
    let folder = Path::new(folder);
    let verdict = match release {
        None => zdb::judge(folder, pool)?,
        Some(release) => {
            let (verdict, count) = kernel::compare(release, folder, pool)?;
            println!("{count} lines compared with the module's");
            verdict
        }
    };
    match verdict {
        Verdict::Clean => {
            println!("clean");
            Ok(())
        }
        Verdict::Faults(lines) => {
            println!("{}", lines.join("\n"));
            std::process::exit(1)
        }
        Verdict::Absent(why) => {
            println!("not judged: {why}");
            std::process::exit(75)
        }
    }
}
