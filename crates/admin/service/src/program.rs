//! Runs channel programs in imported pools, and in pools opened for one command.

use crate::imported::ImportedPools;
use crate::local::LocalChanges;
use crate::send::IsAbandoned;
use millpond_control::{Failure, ProgramProblem, ProgramRequest, ProgramValue};
use millpond_engine::{Pool, Program, ProgramError};
use millpond_env::Tunable;
use millpond_pool::HistoryCommand;
use std::io::{self, Read};

fn problem(error: ProgramError) -> ProgramProblem {
    match error {
        ProgramError::Memory => ProgramProblem::Memory,
        ProgramError::TooLarge => ProgramProblem::TooLarge,
        ProgramError::Script { text, instructions } => {
            ProgramProblem::Script { text, instructions }
        }
        other => ProgramProblem::Failed(other.to_string()),
    }
}

fn read_script(input: impl Read) -> io::Result<Vec<u8>> {
    let mut script = vec![];
    input
        .take(ProgramRequest::SCRIPT_BYTES_MAX + 1)
        .read_to_end(&mut script)?;
    match script.len() as u64 > ProgramRequest::SCRIPT_BYTES_MAX {
        true => Err(io::Error::other("the script is longer than 10 MiB")),
        false => Ok(script),
    }
}

/// Runs a script, and records the command once it has begun.
fn run(
    pool: &Pool,
    request: &ProgramRequest,
    command: &HistoryCommand,
    input: impl Read,
    is_abandoned: IsAbandoned<'_>,
) -> Result<ProgramValue, ProgramProblem> {
    let engine = pool.inner();
    let within = |limit: u64, most: Tunable| (1..=engine.env().tunables.get(most)).contains(&limit);
    if !within(request.instructions, Tunable::ProgramInstructionsMax)
        || !within(request.memory_bytes, Tunable::ProgramMemoryMax)
    {
        return Err(ProgramProblem::Limits);
    }
    let failed = |error: &dyn std::fmt::Display| ProgramProblem::Failed(error.to_string());
    let source = read_script(input).map_err(|error| failed(&error))?;
    let program = Program {
        source: &source,
        arguments: request.arguments.clone(),
        instructions: request.instructions,
        memory_bytes: usize::try_from(request.memory_bytes).unwrap_or(usize::MAX),
        is_read_only: request.is_read_only,
    };
    let value = pool.run_program(&program, is_abandoned);
    if !request.is_read_only {
        let recorded = engine.record_command(command);
        recorded.map_err(|error| failed(&error))?;
    }
    value.map_err(problem)
}

impl ImportedPools {
    /// Answers [`millpond_control::Request::RunProgram`].
    ///
    /// # Errors
    /// [`ProgramProblem`].
    pub fn run_program(
        &self,
        request: &ProgramRequest,
        command: &HistoryCommand,
        input: impl Read,
        is_abandoned: IsAbandoned<'_>,
    ) -> Result<ProgramValue, ProgramProblem> {
        let pool = self.get(&request.pool).ok_or(ProgramProblem::NoPool)?;
        // It would wait for devices, possibly for ever.
        if pool.refuse_if_waiting().is_err() {
            let text = "pool I/O is currently suspended";
            return Err(ProgramProblem::Failed(text.to_owned()));
        }
        match pool.live() {
            Some(live) => {
                let running = pool.begin_program();
                let is_stopped = || {
                    let is_stopped = is_abandoned();
                    running.look(is_stopped);
                    is_stopped
                };
                run(live, request, command, input, &is_stopped)
            }
            None => Err(ProgramProblem::Failed("pool is read-only".to_owned())),
        }
    }
}

impl LocalChanges {
    /// Answers [`millpond_control::Request::RunProgram`].
    ///
    /// # Errors
    /// [`ProgramProblem`]. [`ChangeError`](millpond_control::ChangeError) if the pool cannot be opened or closed.
    pub fn run_program(
        &self,
        request: &ProgramRequest,
        command: &str,
        input: impl Read,
        is_abandoned: IsAbandoned<'_>,
    ) -> Result<ProgramValue, Failure> {
        let (pool, was_exported) = self.open(&request.pool)?;
        let value = run(&pool, request, &self.history(command), input, is_abandoned);
        self.close(pool, was_exported)?;
        Ok(value?)
    }
}
