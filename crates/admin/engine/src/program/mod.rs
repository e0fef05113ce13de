//! Channel programs: Lua scripts that read and change the datasets of a pool in one txg.
//!
//! See zfs-program(8). The script runs in syncing context: no other change of datasets happens meanwhile, and
//! no txg is written. Limits of instructions and memory end a script that does not end by itself.

mod arguments;
mod convert;
mod errno;
mod lists;
mod properties;
mod submodules;

use crate::{Error, Pool, View};
use convert::{from_lua, to_lua};
use millpond_dataset::{ProgramTasks, ProgramValue};
use millpond_lua::{Error as LuaError, Limits, Lua, Value};
use millpond_pool::PoolError;
use std::cell::RefCell;

/// The name of the script in error texts.
const CHUNK: &str = "channel program";
/// The default limit of instructions.
pub const PROGRAM_INSTRUCTIONS: u64 = 10_000_000;
/// The default limit of memory, in bytes.
pub const PROGRAM_MEMORY_BYTES: u64 = 10 << 20;

/// A script and how it is run.
#[derive(Debug, Clone)]
pub struct Program<'a> {
    /// The source.
    pub source: &'a [u8],
    /// What the script gets as `...`.
    pub arguments: ProgramValue,
    /// How many instructions it may execute.
    pub instructions: u64,
    /// How much memory it may use, in bytes.
    pub memory_bytes: usize,
    /// Functions of `zfs.sync` are errors.
    pub is_read_only: bool,
}

/// Why a program did not end, or its value cannot be returned. Changes that it made before are kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// It used up its memory.
    #[error("Memory limit exhausted.")]
    Memory,
    /// Its value is too large.
    #[error("Return value too large.")]
    TooLarge,
    /// A syntax error, an error of the script, a limit of instructions. With a trace of the calls.
    #[error("{text}")]
    Script {
        /// The message and the trace.
        text: String,
        /// The number of instructions after which it was stopped.
        instructions: Option<u64>,
    },
    /// The pool could not be changed.
    #[error(transparent)]
    Pool(#[from] Error),
}

/// What the functions of a running program work on.
struct Running<'p> {
    tasks: &'p ProgramTasks<'p>,
    /// The state before the program, for properties that are not stored as such.
    before: &'p View,
    pool: String,
    is_read_only: bool,
    /// The error after which nothing more may happen.
    fatal: RefCell<Option<PoolError>>,
}

impl Running<'_> {
    /// Ends the program with an error of the pool.
    fn end(&self, lua: &Lua<'_>, error: PoolError) -> LuaError {
        let text = error.to_string();
        *self.fatal.borrow_mut() = Some(error);
        lua.error(text)
    }
}

impl Pool {
    /// Runs a channel program. When this returns, its changes are on stable storage. `is_stopped` is asked now and
    /// then; the program ends if it returns true.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn run_program(
        &self,
        program: &Program<'_>,
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<ProgramValue, ProgramError> {
        let before = self.committed()?;
        let pool = self.inner().name();
        let outcome = self.datasets().run_program(|tasks| {
            let running = Running {
                tasks,
                before: &before,
                pool,
                is_read_only: program.is_read_only,
                fatal: RefCell::new(None),
            };
            let outcome = run(&running, program, is_stopped);
            match running.fatal.into_inner() {
                Some(fatal) => Err(fatal),
                None => Ok(outcome),
            }
        });
        outcome.map_err(Error::from)?
    }
}

fn run(
    running: &Running<'_>,
    program: &Program<'_>,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<ProgramValue, ProgramError> {
    let limits = Limits {
        instructions: program.instructions,
        memory_bytes: program.memory_bytes,
    };
    let mut lua = Lua::new(limits).map_err(|_| ProgramError::Memory)?;
    lua.stop_when(is_stopped);
    let results = start(&mut lua, running, program);
    let results = results.map_err(|error| script_error(&lua, error))?;
    match results.as_slice() {
        [] | [Value::Nil] => Ok(ProgramValue::Nil),
        [value] => from_lua(&lua, "return", value, program.memory_bytes),
        _ => Err(plain("Multiple return values not supported")),
    }
}

fn start<'r>(
    lua: &mut Lua<'r>,
    running: &'r Running<'r>,
    program: &Program<'_>,
) -> Result<Vec<Value>, LuaError> {
    submodules::register(lua, running)?;
    errno::register(lua)?;
    let script = lua.load(program.source, CHUNK)?;
    let arguments = to_lua(lua, &program.arguments)?;
    lua.call(&script, &[arguments])
}

fn plain(text: impl Into<String>) -> ProgramError {
    ProgramError::Script {
        text: text.into(),
        instructions: None,
    }
}

fn script_error(lua: &Lua<'_>, error: LuaError) -> ProgramError {
    match error {
        LuaError::Memory => ProgramError::Memory,
        LuaError::Syntax(text) => plain(text),
        // An error that is a table has no text.
        LuaError::Runtime { message, traceback } if message.is_empty() => plain(traceback),
        LuaError::Runtime { message, traceback } => plain(format!("{message}\n{traceback}")),
        LuaError::Instructions => ProgramError::Script {
            text: ended(lua, "Channel program timed out."),
            instructions: Some(lua.instructions_used()),
        },
        LuaError::Stopped => ProgramError::Script {
            text: ended(lua, "Channel program was canceled."),
            instructions: Some(lua.instructions_used()),
        },
    }
}

/// Why a program was ended, and where it was.
fn ended(lua: &Lua<'_>, why: &str) -> String {
    let Some(traceback) = lua.traceback() else {
        return why.to_owned();
    };
    let first = traceback.lines().nth(1).unwrap_or_default();
    match first.trim().split_once(": in ") {
        Some((place, _)) => format!("{place}: {why}\n{traceback}"),
        None => format!("{why}\n{traceback}"),
    }
}
